#include "base/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"

namespace ddp {
namespace {

/// The files bin/tool (a program), data/tool (a plain file) and dirs/tool (a directory).
class Tree {
 public:
  Tree() {
    REQUIRE(mkdtemp(root_.data()) != nullptr);
    for (const char* name : {"/bin", "/data", "/dirs", "/dirs/tool"})
      std::filesystem::create_directory(root_ + name);
    std::ofstream(root_ + "/bin/tool") << "#!/bin/sh\n";
    std::ofstream(root_ + "/data/tool") << "text\n";
    chmod((root_ + "/bin/tool").c_str(), 0755);
    chmod((root_ + "/data/tool").c_str(), 0644);
  }
  ~Tree() { std::filesystem::remove_all(root_); }
  std::string at(const std::string& name) const { return root_ + name; }

 private:
  std::string root_ = "/tmp/ddp_find_XXXXXX";
};

std::string found(std::string_view name, std::optional<std::string_view> path, std::string_view cwd = {}) {
  auto result = find_program(name, path, cwd);
  return result ? *result : "error: " + result.error().text;
}

TEST_CASE("a companion program is in libexec of an installation, else in the directory itself") {
  std::string root = "/tmp/ddp_companion_XXXXXX";
  REQUIRE(mkdtemp(root.data()) != nullptr);
  const std::string bin = root + "/bin";
  CHECK(companion_program(bin, "train") == bin + "/train");
  std::filesystem::create_directories(root + "/libexec/ddplaunch");
  CHECK(companion_program(bin, "train") == bin + "/train");
  std::ofstream(root + "/libexec/ddplaunch/train") << "#!/bin/sh\n";
  CHECK(companion_program(bin, "train") == root + "/libexec/ddplaunch/train");
  CHECK(companion_program(bin, "ddplaunch-listen") == bin + "/ddplaunch-listen");
  std::filesystem::remove_all(root);
}

}  // namespace

TEST_CASE("a program is searched as execvp does") {
  const Tree tree;
  const std::string tool = tree.at("/bin/tool");
  CHECK(found("tool", tree.at("/bin")) == tool);
  CHECK(found("tool", "/nonexistent:" + tree.at("/bin/") + ":/usr/bin") == tool);
  // A plain file or a directory of that name does not end the search.
  CHECK(found("tool", tree.at("/data") + ":" + tree.at("/dirs") + ":" + tree.at("/bin")) == tool);
  CHECK(found("sh", std::nullopt) == "/bin/sh");
}

TEST_CASE("an empty entry of PATH is the working directory") {
  const Tree tree;
  const std::string tool = tree.at("/bin/tool");
  CHECK(found("tool", "/nonexistent:", tree.at("/bin")) == tool);
  CHECK(found("tool", ":/nonexistent", tree.at("/bin")) == tool);
  CHECK(found("tool", "", tree.at("/bin")) == tool);
  CHECK(found("tool", "bin", tree.at("")) == tool);
}

TEST_CASE("a name with a slash is a path relative to the working directory") {
  const Tree tree;
  CHECK(found(tree.at("/bin/tool"), "") == tree.at("/bin/tool"));
  CHECK(found("./tool", "/usr/bin", tree.at("/bin")) == tree.at("/bin/./tool"));
  CHECK(found("bin/tool", "", tree.at("")) == tree.at("/bin/tool"));
}

TEST_CASE("a missing program is an error that names the searched places") {
  const Tree tree;
  auto missing = find_program("no-such-tool", "/usr/bin:/bin");
  REQUIRE(missing.has_error());
  CHECK(missing.error().code == ErrorCode::kExec);
  CHECK(missing.error().sys == ENOENT);
  CHECK(missing.error().text == "cannot find program 'no-such-tool' in PATH (/usr/bin:/bin)");
  const auto here = find_program("hosts", "/usr/bin:/bin", "/etc");
  REQUIRE_FALSE(here.has_value());
  CHECK(here.error().text == "cannot find program 'hosts' in PATH; for the file here write ./hosts");
  const std::string with_python3 = tree.at("/bin");
  std::filesystem::copy_file(tree.at("/bin/tool"), tree.at("/bin/python3"));
  CHECK(find_program("python", with_python3).error().text ==
        "cannot find program 'python' in PATH (" + with_python3 + "); python3 is there");
  CHECK(find_program("python", "/nonexistent").error().text ==
        "cannot find program 'python' in PATH (/nonexistent)");
  CHECK(find_program("", "/bin").error().text == "cannot execute '': the program has no name");

  auto plain = find_program("tool", tree.at("/data"));
  CHECK(plain.error().sys == EACCES);
  CHECK(plain.error().text ==
        "cannot execute 'tool': " + tree.at("/data/tool") + " is not an executable file (chmod +x?)");
  auto directory = find_program(tree.at("/dirs"), "");
  CHECK(directory.error().sys == EISDIR);
  CHECK(directory.error().text ==
        "cannot execute '" + tree.at("/dirs") + "': " + tree.at("/dirs") + " is a directory");
  auto nothing = find_program("./gone", "", tree.at("/data"));
  CHECK(nothing.error().sys == ENOENT);
  CHECK(nothing.error().text ==
        "cannot execute './gone': " + tree.at("/data") + "/./gone: No such file or directory");
}

}  // namespace ddp
