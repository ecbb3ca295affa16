#include "apps/ddplaunch_listen/listen_options.h"

#include <string_view>

#include "apps/ddplaunchd/daemon_options.h"
#include "apps/options/option_scanner.h"
#include "base/parse_text.h"
#include "base/safe_text.h"
#include "launcher/link_protocol/daemon_frame.h"

namespace ddp {
namespace {

/// Reads PORT, ADDRESS:PORT or [ADDRESS]:PORT. An omitted value leaves the defaults.
ReadValue endpoint_into(ListenOptions& options) {
  return [&options](const std::string& text) -> std::string {
    if (text.empty()) return "";
    const std::size_t colon = text.rfind(':');
    std::string address = colon == std::string::npos ? "" : text.substr(0, colon);
    if (address.size() > 1 && address.front() == '[' && address.back() == ']') {
      address = address.substr(1, address.size() - 2);
    } else if (address.find(':') != std::string::npos) {
      return ": write an IPv6 address in brackets: [fd00::5]:29499";
    }
    if (colon != std::string::npos && address.empty())
      return ": the address before the colon is missing; for all interfaces give only the port";
    const std::string_view digits = std::string_view(text).substr(colon == std::string::npos ? 0 : colon + 1);
    const auto port = parse_number<std::uint16_t>(digits);
    if (!port)
      return ": \"" + std::string(digits) + "\" is not a port; give a number up to 65535 (0: any free port)";
    options.port = *port;
    options.address = std::move(address);
    return "";
  };
}

}  // namespace

Result<ListenOptions> read_listen_options(const std::vector<std::string>& words) {
  ListenOptions options;
  options.port = launcher::kDaemonPort;
  const std::vector<OptionGroup> groups = daemon_option_groups();
  OptionTable table(kDaemonUsage);
  table.group(groups.front().title);
  table.value(find_option(groups, "--listen"), endpoint_into(options));
  table.value(find_option(groups, "--new-token"), text_into(options.new_token_path));
  table.value(find_option(groups, "--token-file"), text_into(options.token_file));
  std::vector<std::string> errors = parse_arguments("ddplaunchd", words, table);
  options.new_token = table.given("--new-token");
  if (errors.empty() && table.given("--listen") == options.new_token)
    errors.emplace_back("give either --listen or --new-token");
  if (errors.empty() && options.new_token && !options.token_file.empty())
    errors.emplace_back("--new-token FILE already names the file; omit --token-file");
  if (errors.empty()) return options;
  std::string text;
  for (const std::string& error : errors)
    text += (text.empty() ? "" : "\nddplaunchd: ") + one_line(error);
  return Error{ErrorCode::kUsage, text};
}

}  // namespace ddp
