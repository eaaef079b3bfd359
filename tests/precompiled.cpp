// The one source that CMake wants beside a header to precompile.
#include "tests/precompiled.h"
