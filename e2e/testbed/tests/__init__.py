"""Tests of the test bed."""
