"""Pure: values in, values out. No torch, no environment, no files, no clock."""
