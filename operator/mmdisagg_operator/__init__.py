"""Kubernetes operator of mmdisagg: the API types, the pure plan, and the reconciler."""
