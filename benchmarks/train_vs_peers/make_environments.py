"""Make one virtual environment per peer, outside the lock: ``python make_environments.py --into ~/peers``."""

import argparse
import subprocess
import sys
from pathlib import Path

PEERS = ("hf", "litgpt")
HERE = Path(__file__).parent


def make(folder: Path, peer: str, python: str, pip_arguments: list[str]) -> None:
    """An environment at ``folder/peer`` with what peers/PEER.txt pins; one that exists is brought up to it."""
    environment = folder / peer
    if not (environment / "bin" / "python").exists():
        subprocess.run([python, "-m", "venv", environment], check=True)
    requirements = HERE / "peers" / f"{peer}.txt"
    interpreter = str(environment / "bin" / "python")
    pip = [interpreter, "-m", "pip", "install", "--quiet", "-r", str(requirements)]
    subprocess.run([*pip, *pip_arguments], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environments")
    parser.add_argument("pip", nargs="*", help="after --: more arguments for pip install, such as an index")
    arguments = parser.parse_args()
    for peer in arguments.only:
        make(arguments.into, peer, arguments.python, arguments.pip)
        print(f"{peer}: {arguments.into / peer}")


if __name__ == "__main__":
    main()
