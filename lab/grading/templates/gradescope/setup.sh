#!/usr/bin/env bash
# Gradescope runs this once, as root, when it makes the image: its base is Ubuntu 22.04.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update
# Ubuntu's own Python is 3.10. make: sets the course up with the tested versions, without CUDA.
apt-get install --yes --no-install-recommends bubblewrap make python3.11 python3.11-venv
make -C /autograder/source/course set-up BUILD=cpu
