// What most tests include, parsed once (CMakeLists.txt). Tests include what they need all the same.
#pragma once

#include <catch2/catch.hpp>

#include "tools/cmake/precompiled_front_end.h"
