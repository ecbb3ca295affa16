#include <atomic>
#include <iostream>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include "tests/support/skip.h"

namespace {

constexpr int kExitSkipped = 77;  // SKIP_RETURN_CODE

std::atomic<bool> skipped = false;

}  // namespace

void ddp::test::note_skip(const std::string& reason) {
  skipped = true;
  // unittest's format, which skipped_cases.py reads
  std::cout << Catch::getResultCapture().getCurrentTestName() << " ... skipped '" << reason << "'"
            << std::endl;
}

int main(int argc, char** argv) {
  const int code = Catch::Session().run(argc, argv);
  return code == 0 && skipped ? kExitSkipped : code;
}
