#include "apps/ddplaunch_listen/listen_options.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "launcher/link_protocol/daemon_frame.h"

namespace ddp {
namespace {

Error wrong(const std::string& text) {
  return Error{ErrorCode::kUsage, text};
}

Result<std::uint16_t> read_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size())
    return wrong("\"" + std::string(text) + "\" is not a port; give a number up to 65535 (0: any free port)");
  return port;
}

/// Reads PORT, ADDRESS:PORT or [ADDRESS]:PORT.
Result<> read_endpoint(const std::string& text, ListenOptions& options) {
  const std::size_t colon = text.rfind(':');
  std::string address = colon == std::string::npos ? "" : text.substr(0, colon);
  if (address.size() > 1 && address.front() == '[' && address.back() == ']') {
    address = address.substr(1, address.size() - 2);
  } else if (address.find(':') != std::string::npos) {
    return wrong("--listen " + text + ": write an IPv6 address in brackets: [fd00::5]:29499");
  }
  if (colon != std::string::npos && address.empty())
    return wrong("--listen " + text +
                 ": the address before the colon is missing; for all interfaces give only the port");
  const auto port = read_port(std::string_view(text).substr(colon == std::string::npos ? 0 : colon + 1));
  if (!port) return within("--listen " + text, port.error());
  options.address = std::move(address);
  options.port = *port;
  return {};
}

}  // namespace

Result<ListenOptions> read_listen_options(const std::vector<std::string>& words) {
  ListenOptions options;
  options.port = launcher::kDaemonPort;
  bool listen = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].starts_with("--") ? words[i].find('=') : std::string::npos;
    std::string name = words[i].substr(0, equals);
    std::replace(name.begin(), name.end(), '_', '-');
    bool given = equals != std::string::npos;
    std::string value = given ? words[i].substr(equals + 1) : "";
    if (!given && i + 1 < words.size() && !words[i + 1].starts_with("-")) {
      given = true;
      value = words[++i];
    }
    if (name == "--listen") {
      listen = true;
      const Result<> parsed = given ? read_endpoint(value, options) : Result<>();
      if (!parsed) return parsed.error();
    } else if (name == "--new-token") {
      options.new_token = true;
      options.new_token_path = value;
    } else if (name == "--token-file") {
      if (value.empty()) return wrong("--token-file needs the path of a file");
      options.token_file = value;
    } else {
      return wrong("unknown option " + name);
    }
  }
  if (listen == options.new_token) return wrong("give either --listen or --new-token");
  if (options.new_token && !options.token_file.empty())
    return wrong("--new-token FILE already names the file; omit --token-file");
  return options;
}

}  // namespace ddp
