// Compares documents and examples with the tables of options.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "apps/ddplaunch/options/option_sources.h"
#include "remote/hosts/hostfile.h"
#include "tests/support/catch.h"

namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns whether `text` has `--name`, followed by a character that ends a name.
bool mentions(const std::string& text, const std::string& name) {
  const std::string open = '`' + name;
  for (std::size_t at = 0; (at = text.find(open, at)) != std::string::npos; ++at) {
    const char next = text[at + open.size()];
    if (next == '`' || next == ' ') return true;
  }
  return false;
}

}  // namespace

TEST_CASE("docs/users/options.md lists every option of another launcher") {
  const std::string text = text_of(DDP_SOURCE_DIR "/docs/users/options.md");
  for (const ddp::CompatibilityOption& row : ddp::compatibility_options()) {
    CAPTURE(row.name);
    CHECK(mentions(text, std::string(row.name)));
  }
  int others = 0;
  for (const ddp::OptionGroup& group : ddp::ddplaunch_option_groups()) {
    for (const ddp::Option& option : group.options) {
      for (const std::string& name : ddp::split_names(option.other_names)) {
        CAPTURE(name);
        CHECK(mentions(text, name));
        ++others;
      }
    }
  }
  CHECK(others == 38);
}

TEST_CASE("The example hostfiles are read without an error") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DDP_SOURCE_DIR "/configs")) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("hostfile.")) continue;
    ++files;
    const auto parsed = ddp::remote::parse_hostfile(text_of(entry.path()), name);
    CAPTURE(name);
    CHECK(parsed.has_value());
  }
  CHECK(files >= 2);
}
