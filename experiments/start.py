"""How the command line sets jax up: double precision, programs kept between runs, so many CPU devices.

The library flips none of this by itself. `jax` is imported here, when a request is known to be well-formed.
"""

import os
import platform
import zlib
from pathlib import Path

CACHE = "ADACGD_CACHE"
OFF = ("off", "0", "")


def set_up(devices: int | None = None) -> None:
    """Bounds are certified in double precision only; what was compiled once is not compiled again.

    devices: how many the CPU is to stand for, where jax has not started yet and XLA_FLAGS do not say it.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    folder = cache_folder()
    if folder is not None and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)  # ours are many and small
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if devices is not None and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", devices)


def cache_folder() -> Path | None:
    """Where compiled programs are kept: the folder named by ADACGD_CACHE, else the user's cache; None: nowhere.

    It is made where it is not there. One that cannot be written is none: a command must not fail for it.
    """
    asked = os.environ.get(CACHE)
    if asked is not None and asked.strip().lower() in OFF:
        return None
    if asked is not None:
        place = Path(asked).expanduser()
    else:
        import platformdirs

        place = Path(platformdirs.user_cache_dir("adacgd")) / "compiled"
    folder = place / _processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def _processor() -> str:
    """A name for this kind of processor: machines that share a home must not run each other's code."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        facts = platform.processor()
    return f"{platform.machine()}-{zlib.crc32(facts.encode()):08x}"
