"""Every benchmark of this folder, one after the other, each in a process of its own with one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    failed = []
    for script in sorted(HERE.glob("*.py")):
        if script.name != Path(__file__).name:
            print(f"\n{script.name}", flush=True)
            if subprocess.run([sys.executable, str(script)], env=env).returncode:
                failed.append(script.name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
