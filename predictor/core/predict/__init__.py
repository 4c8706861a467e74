"""The public Python interface: one file per question, and the documented estimate-train-time interface."""
