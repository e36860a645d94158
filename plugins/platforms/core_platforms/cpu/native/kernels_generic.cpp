// The kernels for any processor. Everything but the tables has internal linkage.
#include "native.h"

#define CORE_TABLE core_kernels_generic
#define CORE_CONTEXT core_context_generic
#define CORE_TABLE_NAME "generic"
#define CORE_LANES "lanes_generic.h"
#include "kernels.inc.h"
