"""Helpers of the tests; the files beside this folder are the tests themselves."""
