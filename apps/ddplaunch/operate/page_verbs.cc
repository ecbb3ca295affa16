#include "apps/ddplaunch/operate/page_verbs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>

#include "apps/ddplaunch/operate/page_data.h"
#include "apps/ddplaunch/operate/page_html.h"
#include "apps/ddplaunch/operate/page_server.h"
#include "base/crypto.h"
#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "base/unique_fd.h"

namespace ddp {
namespace {

/// Returns the token that requests for the page must have.
Result<std::string> page_token(const OperateOptions& options) {
  if (options.token_file.empty()) return random_text(16);
  const UniqueFd fd(::open(options.token_file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return system_error(errno, "--token-file " + options.token_file);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0 || (status.st_mode & 077) != 0 || !distrust_file(fd.get()).empty()) {
    return Error{ErrorCode::kUsage, "--token-file " + options.token_file +
                                        ": it must be yours, and readable by you alone (chmod 600)"};
  }
  std::string token = first_line(options.token_file);
  const bool good = token.size() >= 16 && std::all_of(token.begin(), token.end(),
                                                      [](unsigned char c) { return std::isalnum(c) != 0; });
  if (good) return token;
  return Error{ErrorCode::kUsage,
               "--token-file " + options.token_file +
                   ": the first line must have at least 16 letters and digits, and nothing else"};
}

/// Returns the address of the page for a browser. Where the server listens at all addresses, the name of this
/// host stands for them.
std::string page_url(const std::string& address, std::uint16_t port, const std::string& token) {
  const bool is_any = address == "0.0.0.0" || address == "::";
  return "http://" + format_endpoint(is_any ? host_name() : address, port) + "/?token=" + token;
}

}  // namespace

Result<> write_report(const OperateOptions& options, const launcher::JobEntry& job) {
  if (options.output.empty()) {
    return Error{ErrorCode::kUsage,
                 "report needs a file: ddplaunch report -o " + job.job + ".html " + job.job};
  }
  const std::string page = page_html(report_data(job), "");
  if (options.output == "-") {
    std::fwrite(page.data(), 1, page.size(), stdout);
    return {};
  }
  const UniqueFd fd(::open(options.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) return system_error(errno, "-o " + options.output);
  return write_bytes(fd.get(), page, options.output);
}

Result<> serve_page(const OperateOptions& options, const launcher::JobEntry& job) {
  const auto token = page_token(options);
  if (!token) return token.error();
  const auto server = PageServer::listen(options.address, options.port, job, Secret(*token));
  if (!server) return server.error();
  std::printf("%s\n", page_url(options.address, (*server)->port(), *token).c_str());
  if (std::fflush(stdout) != 0) return system_error(errno, "standard output");
  std::fprintf(stderr, "ddplaunch: the page of job %s; Ctrl-C ends the page, not the job\n", job.job.c_str());
  (*server)->run();
  return {};
}

}  // namespace ddp
