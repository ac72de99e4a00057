"""What every part stands on: checks of arguments, devices, threads, warnings, files, processes."""
