"""Target devices: profiles, bodies and kernels that depend on the device."""
