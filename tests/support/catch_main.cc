#if __has_include(<catch2/catch_all.hpp>)
namespace {
[[maybe_unused]] const int kMainComesFromCatch2WithMain = 0;
}
#else
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
