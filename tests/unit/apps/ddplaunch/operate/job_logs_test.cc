#include "apps/ddplaunch/operate/job_files.h"

#include <string>

#include "tests/support/catch.h"

namespace ddp {
namespace {

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i)
    all += text;
  return all;
}

TEST_CASE("the size of a pattern of --grep is that of what its bounds repeat") {
  CHECK(written_out_size("") == 0);
  CHECK(written_out_size("GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}") == 40);
  CHECK(written_out_size("([0-9]{1,3}\\.){3}[0-9]{1,3} to ([0-9]{1,3}\\.){3}[0-9]{1,3}") == 2 * 18 + 4);
  CHECK(written_out_size("((ab){2}c){3}") == 3 * 8);
  CHECK(written_out_size("a{3,}b{,2}c{0}d?e*f+") == 4 + 2 + 1 + 2 + 2 + 2);
  CHECK(written_out_size("[]{9}]{2}[^]{9}][[:digit:]{9}[.].]{9}]{3}\\{9}") == 2 + 1 + 3 + 3);
}

TEST_CASE("a pattern of --grep for which regcomp takes too much memory is too long") {
  for (const std::string& pattern :
       {std::string("((a{1,255}){1,255}){1,255}"), std::string("a{30000}"), std::string("a{1,}{9999}"),
        '(' + repeated("a", 60'000) + "){4000}", repeated("(", 20) + 'a' + repeated(")+", 20),
        repeated("(a{9999}){0}", 3'000), repeated("(a{9999}", 3'000), repeated("a?", 60'000)})
    CHECK(written_out_size(pattern) > kMostPattern);
  CHECK(written_out_size("a{4000}") <= kMostPattern);
}

}  // namespace
}  // namespace ddp
