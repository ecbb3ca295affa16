#pragma once

// Debian 12 ships Catch2 v2, Ubuntu 24.04 ships v3. The tests use only features of both.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
