"""Import, export and compare models across frameworks."""
