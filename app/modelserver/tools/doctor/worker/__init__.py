"""A worker that tells what its handler does, for ``modelserver check``. No server starts one."""
