"""Inference: a parameter server for several models on the host, a cache of hot rows on the device, and sessions.

Missing keys of a cache come from the parameter server; keys that no training step has seen are zero vectors.
"""

from hugectr.inference.device_cache import Eviction
from hugectr.inference.embedding_cache import CacheStatistics, CreateEmbeddingCache, EmbeddingCacheInterface
from hugectr.inference.parameter_server import CreateParameterServer, ParameterServerBase
from hugectr.inference.session import InferenceSession

__all__ = [
    "CacheStatistics",
    "CreateEmbeddingCache",
    "CreateParameterServer",
    "EmbeddingCacheInterface",
    "Eviction",
    "InferenceSession",
    "ParameterServerBase",
]
