"""Acts on a placement: the device, the roll call, the process group, the wrap."""
