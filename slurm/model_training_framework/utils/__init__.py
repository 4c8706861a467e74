"""Logging, folders, and results that are a value or an error."""

from model_training_framework.utils.logs import get_logger, setup_logging
from model_training_framework.utils.paths import (
    ProjectStructure,
    ensure_directory_exists,
    get_project_root,
    validate_project_structure,
)
from model_training_framework.utils.result import Error, Result, Success

__all__ = [
    "Error",
    "ProjectStructure",
    "Result",
    "Success",
    "ensure_directory_exists",
    "get_logger",
    "get_project_root",
    "setup_logging",
    "validate_project_structure",
]
