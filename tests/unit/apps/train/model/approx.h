#pragma once

#include "tests/support/catch.h"

// Catch2 v2 has Approx in the global namespace, v3 in its own.
#if CATCH_VERSION_MAJOR >= 3
using Catch::Approx;
#endif
