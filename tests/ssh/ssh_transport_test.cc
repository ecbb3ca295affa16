#include "remote/ssh/ssh_transport.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "remote/transports/command_transport.h"
#include "tests/ssh/channel_io.h"
#include "tests/ssh/nodes.h"
#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::remote;
using namespace ddp::remote::test;

namespace {

const Nodes& nodes() {
  static const Nodes all(64);
  // Tests that expect no key must not find one in the user's SSH agent.
  [[maybe_unused]] static const bool once = (::unsetenv("SSH_AUTH_SOCK"), true);
  return all;
}

/// Writes an ssh_config in which `first_lines` override the nodes' options, and returns its path.
std::string config_with(const std::string& name, const std::string& first_lines) {
  return nodes().write(name, first_lines + "Include " + nodes().file("ssh_config") + "\n");
}

SshTransportOptions options_for(const std::string& config) {
  SshTransportOptions options;
  options.config = config;
  options.io_threads = 2;
  return options;
}

Ran run_ssh(const Host& host, SshTransportOptions options, const std::vector<std::string>& argv,
            std::string input = {}, std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  asio::io_context loop(1);
  SshTransport transport(loop.get_executor(), std::move(options));
  return run_command(loop, transport, host, argv, std::move(input), limit);
}

/// Runs a command on the first node, as its own configuration says.
Ran run_on_node(const std::vector<std::string>& argv, std::string input = {}) {
  return run_ssh(host_named("127.0.0.2"), options_for(nodes().file("ssh_config")), argv, std::move(input));
}

std::string failure(const Host& host, SshTransportOptions options, ErrorCode code,
                    std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const auto ran = run_ssh(host, std::move(options), {"true"}, {}, limit);
  REQUIRE_FALSE(ran.opened.has_value());
  CHECK(ran.opened.error().code == code);
  return ran.opened.error().text;
}

std::string failure(const Host& host, const std::string& config, ErrorCode code) {
  return failure(host, options_for(config), code);
}

std::string place(const std::string& host) {
  return host + ":" + std::to_string(nodes().port());
}
std::string bracketed(const std::string& host) {
  return "[" + host + "]:" + std::to_string(nodes().port());
}
std::string host_fingerprint() {
  return output_of("ssh-keygen -lf " + nodes().file("host_key.pub") + " | cut -d' ' -f2");
}

/// A listening TCP socket on 127.0.0.1 that accepts no connection by itself, or one that only holds a port.
struct Listener {
  explicit Listener(bool listens = true) : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    if (listens) REQUIRE(::listen(fd.get(), 64) == 0);
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
  UniqueFd fd;
  std::uint16_t port = 0;
};

Host at_port(const std::string& name, std::uint16_t port) {
  Host host = host_named(name);
  host.port = port;
  return host;
}

}  // namespace

TEST_CASE("a command's output, stderr, input and exit status, through libssh and through ssh") {
  asio::io_context loop(1);
  SshTransport libssh(loop.get_executor(), options_for(nodes().file("ssh_config")));
  CommandTransport openssh(loop.get_executor(), {{"ssh"}, nodes().file("ssh_config"), false});
  for (Transport* transport : {static_cast<Transport*>(&libssh), static_cast<Transport*>(&openssh)}) {
    const auto ran = run_command(loop, *transport, host_named("127.0.0.2"),
                                 {"/bin/sh", "-c", "echo out; echo err >&2; cat; exit 7"}, "typed\n");
    REQUIRE(ran.opened.has_value());
    CHECK(ran.out == "out\ntyped\n");
    CHECK(ran.errors == "err\n");
    CHECK(ran.end.status == 7);
    CHECK_FALSE(ran.end.broken.has_value());
    const std::string bytes = mebibyte();
    CHECK(run_command(loop, *transport, host_named("127.0.0.2"), {"cat"}, bytes).out == bytes);
  }
  CHECK(run_command(loop, libssh, host_named("127.0.0.3"), {"true"}).address == "127.0.0.3");
}

TEST_CASE("arguments arrive byte for byte") {
  const auto ran = run_on_node({"printf", "%s|", "two words", "$HOME", "a'b\"c", "*", "", "!x", "\\"});
  CHECK(ran.out == "two words|$HOME|a'b\"c|*||!x|\\|");
}

TEST_CASE("both streams carry megabytes at once") {
  const auto ran =
      run_on_node({"/bin/sh", "-c", "head -c 9000000 /dev/zero >&2 & head -c 9000000 /dev/zero; wait"});
  CHECK(ran.out.size() == 9000000);
  CHECK(ran.errors.size() == 9000000);
  CHECK(ran.end.status == 0);
}

TEST_CASE("a command that reads nothing ends although input is pending") {
  const auto ran = run_on_node({"echo", "done"}, std::string(8 << 20, 'x'));
  CHECK(ran.out == "done\n");
  CHECK(ran.end.status == 0);
}

TEST_CASE("a remote signal is reported as 128 and its number, a lost connection as such") {
  const auto killed = run_on_node({"/bin/sh", "-c", "kill -9 $$"});
  CHECK(killed.end.status == 137);
  const auto lost = run_on_node({"/bin/sh", "-c", "echo x; sleep 0.2; kill -9 $PPID"});
  CHECK_FALSE(lost.end.status.has_value());
  REQUIRE(lost.end.broken.has_value());
  CHECK(lost.end.broken->code == ErrorCode::kLinkLost);
  CHECK(lost.end.broken->text.rfind("127.0.0.2: the SSH connection to " + place("127.0.0.2") + " broke: ",
                                    0) == 0);
}

TEST_CASE("an unknown host key is refused with the command that accepts it") {
  const std::string config =
      config_with("config_unknown", "UserKnownHostsFile " + nodes().file("none_yet") + "\n");
  CHECK(failure(host_named("127.0.0.2"), config, ErrorCode::kUnreachable) ==
        "127.0.0.2: unknown host key of " + place("127.0.0.2") + " (ssh-ed25519 " + host_fingerprint() +
            "): no line for " + bracketed("127.0.0.2") + " in " + nodes().file("none_yet") +
            "; check the fingerprint, then accept it with \"ssh -F " + config +
            " 127.0.0.2 true\", or start with --accept-new-host-keys");
}

TEST_CASE("the suggested ssh command reaches the same host by hand") {
  const std::string config =
      config_with("config_advice", "UserKnownHostsFile " + nodes().file("none_yet") + "\n");
  Host host = at_port("gpu01", static_cast<std::uint16_t>(nodes().port()));
  host.address = "127.0.0.7";
  host.user = "someone";
  const std::string text = failure(host, config, ErrorCode::kUnreachable);
  CHECK(text.rfind("gpu01: unknown host key of " + place("127.0.0.7"), 0) == 0);
  CHECK(text.find("accept it with \"ssh -F " + config + " -p " + std::to_string(nodes().port()) +
                  " -o HostName=127.0.0.7 someone@gpu01 true\"") != std::string::npos);
}

TEST_CASE("--accept-new-host-keys stores a new key, and refuses a changed one") {
  const std::string known = nodes().file("new/known_hosts");
  const std::string config =
      config_with("config_new", "UserKnownHostsFile " + known + "\nHashKnownHosts yes\n");
  asio::io_context loop(1);
  SshTransportOptions options = options_for(config);
  options.accept_new_host_keys = true;
  SshTransport accepting(loop.get_executor(), options);
  for (int i = 0; i < 2; ++i) {
    const auto ran = run_command(loop, accepting, host_named("127.0.0.2"), {"echo", "in"});
    REQUIRE(ran.opened.has_value());
    CHECK(ran.out == "in\n");
  }
  CHECK(output_of("wc -l < " + known) == "1");
  CHECK(output_of("cut -c1-3 " + known) == "|1|");
  // The ssh program finds the recorded key, and so does a transport without accept_new_host_keys.
  CHECK(output_of("ssh-keygen -F '" + bracketed("127.0.0.2") + "' -f " + known + " | wc -l") == "2");
  CHECK(run_ssh(host_named("127.0.0.2"), options_for(config), {"echo", "again"}).out == "again\n");

  output_of("ssh-keygen -q -t ed25519 -N '' -f " + nodes().file("changed_host"));
  const std::string changed =
      bracketed("127.0.0.2") + " " + output_of("cut -d' ' -f1,2 " + nodes().file("changed_host.pub")) + "\n";
  nodes().write("new/known_hosts", changed);
  CHECK(failure(host_named("127.0.0.2"), options, ErrorCode::kUnreachable)
            .starts_with("127.0.0.2: THE HOST KEY HAS CHANGED: " + place("127.0.0.2")));
  CHECK(output_of("cat " + known) + "\n" == changed);
}

TEST_CASE("a changed host key is refused with a warning") {
  output_of("ssh-keygen -q -t ed25519 -N '' -f " + nodes().file("other_host"));
  const std::string other = output_of("cut -d' ' -f1,2 " + nodes().file("other_host.pub"));
  const std::string known =
      nodes().write("changed_hosts", "# one line before\n" + bracketed("127.0.0.2") + " " + other + "\n");
  const std::string config =
      config_with("config_changed", "UserKnownHostsFile " + known + "\nStrictHostKeyChecking accept-new\n");
  CHECK(failure(host_named("127.0.0.2"), config, ErrorCode::kUnreachable) ==
        "127.0.0.2: THE HOST KEY HAS CHANGED: " + place("127.0.0.2") + " shows ssh-ed25519 " +
            host_fingerprint() + ", but " + known + ":2 has another key for " + bracketed("127.0.0.2") +
            "; this may be a man-in-the-middle attack, so nothing was sent. If the host was reinstalled: "
            "ssh-keygen -R '" +
            bracketed("127.0.0.2") + "' -f " + known + ", then accept the new key");
}

TEST_CASE("a revoked host key goes to the ssh program, which refuses it") {
  const std::string key = output_of("cut -d' ' -f1,2 " + nodes().file("host_key.pub"));
  const std::string known =
      nodes().write("revoked_hosts", "@revoked * " + key + "\n" + bracketed("127.0.0.2") + " " + key + "\n");
  const std::string config = config_with("config_revoked", "UserKnownHostsFile " + known + "\n");
  const auto ran = run_ssh(host_named("127.0.0.2"), options_for(config), {"true"});
  REQUIRE(ran.end.broken.has_value());
  CHECK(ran.end.broken->code == ErrorCode::kUnreachable);
  CHECK(ran.end.broken->text.find("marked as revoked") != std::string::npos);
}

TEST_CASE("a key that the host does not know is reported with all methods tried") {
  output_of("ssh-keygen -q -t ed25519 -N '' -f " + nodes().file("stranger"));
  output_of("ssh-keygen -q -t ed25519 -N 'a secret' -f " + nodes().file("locked"));
  Host host = host_named("127.0.0.2");
  host.identity = nodes().file("stranger");
  const std::string config = config_with(
      "config_stranger", "Host *\n  IdentityFile " + nodes().file("locked") + "\n  User nobody\n");
  const std::string user = "nobody";
  CHECK(failure(host, config, ErrorCode::kUnreachable) ==
        "127.0.0.2: login as " + user + " refused by " + place("127.0.0.2") + "; tried " +
            nodes().file("stranger") + ", " + nodes().file("id") + "; not usable: " + nodes().file("locked") +
            " (is encrypted); the server accepts publickey; unlock the key before the start: eval "
            "\"$(ssh-agent)\" && ssh-add " +
            nodes().file("locked") +
            "; or put the public key into ~/.ssh/authorized_keys there, or "
            "name another key with identity= in the hostfile");
}

TEST_CASE("a port without a listener") {
  const Listener deaf(false);
  CHECK(failure(at_port("127.0.0.1", deaf.port), nodes().file("ssh_config"), ErrorCode::kUnreachable) ==
        "127.0.0.1: cannot connect to 127.0.0.1:" + std::to_string(deaf.port) +
            ": Connection refused; check that sshd runs there, and on this port");
}

TEST_CASE("a host name that cannot be resolved") {
  Host host = host_named("gpu01");
  host.address = "no-such-host.invalid";
  const std::string text = failure(host, nodes().file("ssh_config"), ErrorCode::kUnreachable);
  CHECK(text.rfind("gpu01: cannot resolve no-such-host.invalid: ", 0) == 0);
  CHECK(text.find("; check the name, or give address= in the hostfile") != std::string::npos);
}

TEST_CASE("a port that accepts connections and sends nothing is given up at the deadline") {
  const Listener silent;
  const auto before = std::chrono::steady_clock::now();
  CHECK(
      failure(at_port("127.0.0.1", silent.port), options_for(nodes().file("ssh_config")), ErrorCode::kTimeout,
              std::chrono::seconds(4)) ==
      "127.0.0.1: 127.0.0.1:" + std::to_string(silent.port) +
          " accepted the connection, but no SSH server answered before the start limit; check the port, and "
          "whether sshd there hangs");
  CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(30));
}

TEST_CASE("a port that closes each connection is retried a bounded number of times") {
  const Listener closing;
  asio::io_context loop(1);
  asio::ip::tcp::acceptor acceptor(loop, asio::ip::tcp::v4(), ::dup(closing.fd.get()));
  int accepted = 0;
  std::function<void()> accept_next = [&] {
    acceptor.async_accept([&](const error_code& error, asio::ip::tcp::socket) {
      if (error) return;
      ++accepted;
      accept_next();
    });
  };
  accept_next();
  SshTransport transport(loop.get_executor(), options_for(nodes().file("ssh_config")));
  const auto ran =
      run_command(loop, transport, at_port("127.0.0.1", closing.port), {"true"}, {}, std::chrono::seconds(3));
  REQUIRE_FALSE(ran.opened.has_value());
  CHECK(ran.opened.error().code == ErrorCode::kUnreachable);
  CHECK(ran.opened.error().text ==
        "127.0.0.1: 127.0.0.1:" + std::to_string(closing.port) +
            " closed the connection before its SSH greeting; check that it is an SSH server and allows this "
            "many concurrent logins (MaxStartups in sshd_config)");
  CHECK(accepted >= 3);
  CHECK(accepted <= 10);
}

TEST_CASE("a configuration that ssh refuses is reported in ssh's words") {
  const std::string config = nodes().write("config_bad", "NoSuchOption yes\n");
  const std::string text = failure(host_named("127.0.0.2"), config, ErrorCode::kUnreachable);
  CHECK(text.rfind("127.0.0.2: the SSH configuration was rejected by ssh:\n", 0) == 0);
  CHECK(text.find("Bad configuration option: nosuchoption") != std::string::npos);
}

TEST_CASE("without an ssh program the defaults and the hostfile apply") {
  SshTransportOptions options = options_for("none");
  options.ssh_program = "/no/such/ssh";
  Host host = at_port("127.0.0.2", static_cast<std::uint16_t>(nodes().port()));
  host.identity = nodes().file("id");
  // No default known_hosts file has the nodes' host key.
  CHECK(failure(host, options, ErrorCode::kUnreachable)
            .starts_with("127.0.0.2: unknown host key of " + place("127.0.0.2")));
}

TEST_CASE("a configuration that cannot be read is an error, and is not skipped") {
  const std::string pipe = nodes().file("config_pipe");
  ::unlink(pipe.c_str());
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(failure(host_named("127.0.0.2"), pipe, ErrorCode::kUnreachable) ==
        "127.0.0.2: the SSH configuration " + pipe + " is a pipe; name a file");

  SshTransportOptions options = options_for(nodes().file("ssh_config"));
  options.ssh_program = "/no/such/ssh";
  CHECK(failure(host_named("127.0.0.2"), options, ErrorCode::kUnreachable) ==
        "127.0.0.2: the SSH configuration " + options.config +
            " can only be read by the ssh program, and there is no /no/such/ssh "
            "here: install OpenSSH's client");
}

TEST_CASE("an ssh -G with endless output is killed") {
  const std::string program = nodes().write("endless_ssh", "#!/bin/sh\nexec yes\n");
  REQUIRE(::chmod(program.c_str(), 0700) == 0);
  SshTransportOptions options = options_for(nodes().file("ssh_config"));
  options.ssh_program = program;
  CHECK(failure(host_named("127.0.0.2"), options, ErrorCode::kUnreachable) ==
        "127.0.0.2: " + program + " -G printed more than 1 MiB, which is no SSH configuration");
}

TEST_CASE("options that keep ssh from running a command are overridden") {
  for (const char* more : {"ForkAfterAuthentication yes\n", "SessionType none\n"}) {
    const std::string config =
        config_with("config_no_command", std::string(more) + "IdentityFile ~/.ssh/no_%C\n");
    SshTransportOptions options = options_for(config);
    std::vector<std::string> notices;
    options.notice = [&notices](const std::string& text) { notices.push_back(text); };
    const auto ran = run_ssh(host_named("127.0.0.2"), options, {"echo", "in"});
    CAPTURE(more);
    REQUIRE(ran.opened.has_value());
    CHECK(ran.out == "in\n");
    REQUIRE(notices.size() == 1);
    CHECK(notices[0].find("because of a token in IdentityFile that only ssh can expand") !=
          std::string::npos);
  }
}

TEST_CASE("a host behind a jump host uses the ssh program, reported once") {
  const std::string config =
      config_with("config_jump", "Host inner*\n  HostName 127.0.0.5\n  ProxyCommand ssh -F " +
                                     nodes().file("ssh_config") + " -W %h:%p 127.0.0.3\n");
  asio::io_context loop(1);
  SshTransportOptions options = options_for(config);
  std::vector<std::string> notices;
  options.notice = [&notices](const std::string& text) { notices.push_back(text); };
  SshTransport transport(loop.get_executor(), options);
  for (const char* name : {"inner1", "inner2"}) {
    const auto ran =
        run_command(loop, transport, host_named(name), {"/bin/sh", "-c", "echo $SSH_CONNECTION"});
    REQUIRE(ran.opened.has_value());
    CHECK(ran.out.find(" 127.0.0.5 ") != std::string::npos);
  }
  REQUIRE(notices.size() == 1);
  CHECK(notices[0] ==
        "inner1: connecting through the program ssh, because of ProxyCommand in the SSH configuration "
        "(reported once; other hosts may have the same reason)");
}

TEST_CASE("a user certificate is used") {
  output_of("ssh-keygen -q -t ed25519 -N '' -f " + nodes().file("ca") +
            " && ssh-keygen -q -t ed25519 -N '' -f " + nodes().file("certified") + " && ssh-keygen -q -s " +
            nodes().file("ca") + " -I me -n $(id -un) " + nodes().file("certified.pub") +
            " && echo \"cert-authority $(cat " + nodes().file("ca.pub") + ")\" >> " +
            nodes().file("authorized_keys"));
  const std::string config =
      nodes().write("config_cert", "IdentityFile " + nodes().file("certified") +
                                       "\nIdentitiesOnly yes\nPort " + std::to_string(nodes().port()) +
                                       "\nUserKnownHostsFile " + nodes().file("known_hosts") + "\n");
  CHECK(run_ssh(host_named("127.0.0.2"), options_for(config), {"echo", "in"}).out == "in\n");
}

TEST_CASE("an ssh-agent signs, and one that never answers blocks no other host") {
  const std::string socket = nodes().file("agent");
  const std::string agent =
      output_of("ssh-agent -a " + socket + " | sed -n 's/.*AGENT_PID=\\([0-9]*\\);.*/\\1/p'");
  output_of("SSH_AUTH_SOCK=" + socket + " ssh-add -q " + nodes().file("id"));
  const std::string rest = "\n  IdentityFile /no/such/key\n  Port " + std::to_string(nodes().port()) +
                           "\n  UserKnownHostsFile " + nodes().file("known_hosts") + "\n";
  const std::string config =
      nodes().write("config_agent", "Host 127.0.0.2 127.0.0.3\n  IdentityAgent " + socket + rest +
                                        "Host *\n  IdentityAgent " + nodes().file("deaf") + rest);
  CHECK(run_ssh(host_named("127.0.0.2"), options_for(config), {"echo", "in"}).out == "in\n");
  output_of("kill " + agent);

  asio::io_context loop(1);
  asio::local::stream_protocol::acceptor deaf(loop,
                                              asio::local::stream_protocol::endpoint(nodes().file("deaf")));
  SshTransport transport(loop.get_executor(), options_for(config));
  bool refused = false;
  asio::co_spawn(
      loop,
      transport.open(host_named("127.0.0.4"), {"true"},
                     std::chrono::steady_clock::now() + std::chrono::seconds(10)),
      [&refused](std::exception_ptr, Result<std::unique_ptr<Channel>> channel) {
        refused = true;
        CHECK(channel.has_error());
        CHECK(channel.error().code == ErrorCode::kTimeout);
        CHECK(channel.error().text == "127.0.0.4: the login at " + place("127.0.0.4") +
                                          " did not finish before the start limit; check whether the "
                                          "ssh-agent waits for a touch or a passphrase");
      });
  Host quick = host_named("127.0.0.6");
  quick.identity = nodes().file("id");
  CHECK(run_command(loop, transport, quick, {"echo", "quick"}).out == "quick\n");
  CHECK_FALSE(refused);
  loop.restart();
  while (!refused)
    REQUIRE(loop.run_one_for(std::chrono::seconds(60)) > 0);
}
