"""The `mmdisagg` command."""
