"""Texts of options that several commands have."""

MESH_HELP = "devices, as data=N,fsdp=N,tensor=N; data=0 takes the rest (default: one)"
