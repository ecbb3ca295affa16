#pragma once

// Debian 12 ships Catch2 v2, Ubuntu 24.04 ships v3; the tests use only what both have.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
