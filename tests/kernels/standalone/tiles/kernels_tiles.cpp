// The kernels of `amx` as this machine can run them: tiles in plain C++, and the lanes of a set that it has.
#include "native.h"

#define CORE_TABLE core_kernels_amx
#define CORE_TABLE_NAME "amx"
#define CORE_LANES TEST_LANES
#define CORE_TILES_HEADER "plain_tiles.h"
#include "kernels.inc.h"
