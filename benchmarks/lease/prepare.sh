# Source this in the root of the checkout, on a machine with a GPU, python3, torch and triton, and without a package index:
#     . benchmarks/lease/prepare.sh && python3 -m benchmarks.lease 1
# It installs the wheels of `make gpu-lease` into a folder, makes the plugins of the checkout known, and compiles nothing.
LEASE_HOME=${LEASE_HOME:-/tmp/core-lease}
LEASE_WHEELS=${LEASE_WHEELS:-build/lease}
mkdir -p "$LEASE_HOME" &&
    python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --disable-pip-version-check \
        --target "$LEASE_HOME/site" "$LEASE_WHEELS"/*/*.whl &&
    PYTHONPATH="$LEASE_HOME/site:$(python3 .ci/metadata.py "$LEASE_HOME/metadata")" &&
    export PYTHONPATH PYTHONUNBUFFERED=1 TRITON_CACHE_DIR="$LEASE_HOME/triton"
