#pragma once

#include <string>

namespace ddp::test {

/// Prints why a test case cannot run here. The program then exits with 77, which ctest shows as skipped.
void note_skip(const std::string& reason);

}  // namespace ddp::test

/// Ends the enclosing test case. The case is tagged with its requirement ("[root]"), and its ddp_test names
/// the tag behind NEEDS, so that such cases get their own ctest entry. Catch2 v2 has no SKIP.
#define SKIP_TEST(reason)         \
  do {                            \
    ddp::test::note_skip(reason); \
    return;                       \
  } while (false)
