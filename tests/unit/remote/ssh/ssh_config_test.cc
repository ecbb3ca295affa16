#include "remote/ssh/ssh_config.h"

#include <set>
#include <string>
#include <vector>

#include "remote/ssh/ssh_handshake.h"
#include "tests/support/catch.h"

using namespace ddp::remote;

namespace {

const char* const kDefaults =
    "host gpu01\nuser alice\nhostname gpu01\nport 22\naddressfamily any\nbatchmode no\ncanonicalizehostname "
    "false\n"
    "compression no\ngssapiauthentication yes\nhashknownhosts yes\nhostbasedauthentication "
    "no\nidentitiesonly no\n"
    "pubkeyauthentication true\nstricthostkeychecking ask\nverifyhostkeydns false\n"
    "ciphers "
    "chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr,aes128-gcm@openssh.com,aes256-gcm@"
    "openssh.com\n"
    "kexalgorithms sntrup761x25519-sha512,curve25519-sha256\nidentityfile ~/.ssh/id_rsa\nidentityfile "
    "~/.ssh/id_ed25519\n"
    "globalknownhostsfile /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2\n"
    "userknownhostsfile /home/alice/.ssh/known_hosts /home/alice/.ssh/known_hosts2\nsomenewoption 1\n";

SshConfig parsed(const std::string& more) {
  // ssh -G prints each option once; a later line in a test sets another value.
  auto config = parse_ssh_config(more + kDefaults);
  REQUIRE(config.has_value());
  return *config;
}

}  // namespace

TEST_CASE("the output of ssh -G becomes the configuration") {
  const SshConfig config = parsed("");
  CHECK(config.host_name == "gpu01");
  CHECK(config.user == "alice");
  CHECK(config.port == 22);
  CHECK(config.identity_files == std::vector<std::string>{"~/.ssh/id_rsa", "~/.ssh/id_ed25519"});
  CHECK(config.user_known_hosts ==
        std::vector<std::string>{"/home/alice/.ssh/known_hosts", "/home/alice/.ssh/known_hosts2"});
  CHECK(config.global_known_hosts.size() == 2);
  CHECK(config.pubkey_authentication);
  CHECK_FALSE(config.identities_only);
  CHECK(config.hash_known_hosts);
  CHECK(config.identity_agent.empty());
  CHECK(config.beyond_libssh.empty());  // GSSAPI beside public keys is no obstacle
}

TEST_CASE("unusual values of ssh -G are parsed") {
  const SshConfig config = parsed(
      "port 2222\nidentityagent /run/agent\nidentitiesonly yes\nuserknownhostsfile /dev/null\nhostkeyalias "
      "cluster\n"
      "certificatefile ~/.ssh/c.pub\nstricthostkeychecking accept-new\naddressfamily inet6\n");
  CHECK(config.port == 2222);
  CHECK(config.identity_agent == "/run/agent");
  CHECK(config.identities_only);
  CHECK(config.user_known_hosts.empty());  // so that no key is written to the system's file
  CHECK(config.host_key_alias == "cluster");
  CHECK(config.certificate_files.size() == 1);
  CHECK(config.strict_host_key_checking == "accept-new");
  CHECK(config.address_family == "inet6");
  CHECK(parsed("identityagent SSH_AUTH_SOCK\n").identity_agent.empty());
  const SshConfig more =
      parsed("connecttimeout 7\nrequiredrsasize 2048\ncontrolpath /run/%C\nproxyjump a,b\n");
  CHECK(more.connect_timeout == 7);
  CHECK(more.required_rsa_size == 2048);
  CHECK(more.control_path == "/run/%C");
  CHECK(more.proxy_jump == "a,b");
  CHECK(more.proxy == "a,b");
  CHECK(more.gssapi_authentication);
  const SshConfig none = parsed("connecttimeout none\ncontrolpath none\nproxycommand nc %h\n");
  CHECK(none.connect_timeout == 0);
  CHECK(none.control_path.empty());
  CHECK(none.proxy_jump.empty());
  CHECK(none.proxy == "nc %h");
}

TEST_CASE("options that libssh cannot serve are named") {
  const auto named = [](const std::string& line) {
    const auto names = parsed(line + "\n").beyond_libssh;
    return names.size() == 1 ? names[0] : "";
  };
  CHECK(named("proxyjump bastion") == "ProxyJump");
  CHECK(named("proxycommand nc %h %p") == "ProxyCommand");
  CHECK(named("proxycommand none").empty());
  CHECK(named("pkcs11provider /usr/lib/p11.so") == "PKCS11Provider");
  CHECK(named("canonicalizehostname yes") == "CanonicalizeHostname");
  CHECK(named("canonicalizehostname always") == "CanonicalizeHostname");
  CHECK(named("hostbasedauthentication yes") == "HostbasedAuthentication");
  CHECK(named("preferredauthentications gssapi-with-mic,password") == "PreferredAuthentications");
  CHECK(named("preferredauthentications publickey,password").empty());
  CHECK(named("pubkeyauthentication no") == "PubkeyAuthentication");
  CHECK(named("knownhostscommand /bin/x %H") == "KnownHostsCommand");
  CHECK(named("revokedhostkeys /etc/revoked") == "RevokedHostKeys");
  CHECK(named("bindaddress 10.0.0.1") == "BindAddress");
  CHECK(named("verifyhostkeydns yes") == "VerifyHostKeyDNS");
  CHECK(named("nohostauthenticationforlocalhost yes") == "NoHostAuthenticationForLocalhost");
  CHECK(named("nohostauthenticationforlocalhost no").empty());
  CHECK(named("refuseconnection use the other name") == "RefuseConnection");
  CHECK(named("userknownhostsfile /tmp/k d/known hosts") == "a blank in UserKnownHostsFile");
  CHECK(named("userknownhostsfile known ~/b %d/c ${K}/d /e").empty());
  CHECK(named("globalknownhostsfile /a b") == "a blank in GlobalKnownHostsFile");
}

TEST_CASE("options that keep the ssh program from running a command are disabled where ssh knows them") {
  CHECK(parsed("").for_a_command.empty());
  CHECK(parsed("sessiontype default\nforkafterauthentication no\n").for_a_command.empty());
  CHECK(parsed("sessiontype none\nforkafterauthentication yes\n").for_a_command ==
        std::vector<std::string>{"SessionType=default", "ForkAfterAuthentication=no"});
  CHECK(parsed("channeltimeout none\n").for_a_command.empty());
  CHECK(parsed("channeltimeout session=10s\n").for_a_command ==
        std::vector<std::string>{"ChannelTimeout=none"});
  CHECK(parsed("sessiontype subsystem\n").for_a_command == std::vector<std::string>{"SessionType=default"});
}

TEST_CASE("a host is tried as often as ConnectionAttempts says, and once at least") {
  CHECK(parsed("").connection_attempts == 1);
  CHECK(parsed("connectionattempts 3\n").connection_attempts == 3);
  CHECK(parsed("connectionattempts 0\n").connection_attempts == 1);
}

TEST_CASE("keywords of the files that a login through libssh does not obey are known") {
  SshConfigShape shape;
  shape.add("Host *\n  ipqos=ef\n  User x\nUpdateHostKeys no\nCompression yes\n# RekeyLimit 1G\n");
  CHECK(shape.without_effect() == std::set<std::string>{"IPQoS", "UpdateHostKeys"});
}

TEST_CASE("output that is no configuration is an error") {
  CHECK(parse_ssh_config("").error().text == "the output of ssh -G has no hostname line");
  CHECK(parse_ssh_config("hostname x\nport 70000\n").error().text ==
        "the output of ssh -G has a wrong port: 70000");
  CHECK(parse_ssh_config("hostname x\nport 0\n").has_error());
  CHECK(parse_ssh_config("hostname x\nport 22x\n").has_error());
}

TEST_CASE("aes128-gcm comes first unless the user chose ciphers") {
  CHECK(preferred_ciphers(parsed("").ciphers, true).rfind("aes128-gcm@openssh.com,", 0) == 0);
  const std::string without = preferred_ciphers(parsed("").ciphers, false);
  CHECK(without.rfind("chacha20-poly1305@openssh.com,aes128-ctr,", 0) == 0);
  CHECK(without.ends_with("aes256-ctr,aes128-gcm@openssh.com,aes256-gcm@openssh.com"));
  for (const bool checked : {true, false}) {
    CHECK(preferred_ciphers("aes256-ctr,aes128-gcm@openssh.com", checked) ==
          "aes256-ctr,aes128-gcm@openssh.com");
    CHECK(preferred_ciphers("", checked).empty());
  }
}

TEST_CASE("tokens in paths") {
  SshTokens tokens;
  tokens.home = "/home/alice";
  tokens.local_user = "alice";
  tokens.host_name = "10.0.0.1";
  tokens.given_name = "gpu01";
  tokens.remote_user = "root";
  tokens.port = 2222;
  tokens.variable = [](const std::string& name) {
    return name == "KEYS" ? std::optional<std::string>("/keys") : std::nullopt;
  };
  CHECK(expand_ssh_tokens("~/.ssh/id_%n_%r", tokens) == "/home/alice/.ssh/id_gpu01_root");
  CHECK(expand_ssh_tokens("%d/%h:%p/%u%%", tokens) == "/home/alice/10.0.0.1:2222/alice%");
  CHECK(expand_ssh_tokens("${KEYS}/id", tokens) == "/keys/id");
  CHECK(expand_ssh_tokens("/plain", tokens) == "/plain");
  CHECK_FALSE(expand_ssh_tokens("${NOT_SET}/id", tokens).has_value());
  CHECK_FALSE(expand_ssh_tokens("/x/%C", tokens).has_value());
  CHECK_FALSE(expand_ssh_tokens("~bob/id", tokens).has_value());
  CHECK(option_beyond_tokens(parsed(""), tokens).empty());
  for (const char* path : {"~/.ssh/%l", "/k/%L", "%i", "/k/%C", "${NOT_SET}"})
    CHECK(option_beyond_tokens(parsed("identityfile " + std::string(path) + "\n"), tokens) == "IdentityFile");
  CHECK(option_beyond_tokens(parsed("certificatefile %C\n"), tokens) == "CertificateFile");
}

TEST_CASE("patterns match like in ssh_config") {
  CHECK(matches_ssh_pattern("gpu*", "gpu01"));
  CHECK(matches_ssh_pattern("*", ""));
  CHECK(matches_ssh_pattern("g?u0*1", "gpu0xx1"));
  CHECK(matches_ssh_pattern("*.b.*", "a.b.b.c"));
  CHECK_FALSE(matches_ssh_pattern("gpu?", "gpu01"));
  CHECK_FALSE(matches_ssh_pattern("", "x"));
  CHECK(matches_ssh_patterns({"gpu*", "!gpu02"}, "gpu01"));
  CHECK_FALSE(matches_ssh_patterns({"gpu*", "!gpu02"}, "gpu02"));
  CHECK_FALSE(matches_ssh_patterns({"!gpu02"}, "gpu01"));
}

TEST_CASE("hosts that the files cannot tell apart share one query") {
  SshConfigShape shape;
  CHECK(shape.add("# comment\nHost *\n  IdentityFile ~/.ssh/%h\nHost gpu* !gpu09\n User x\nInclude \"a b\" "
                  "conf.d/*\n") == std::vector<std::string>{"a b", "conf.d/*"});
  CHECK(shape.signature("gpu01") == shape.signature("gpu02"));
  CHECK(shape.signature("GPU01") == shape.signature("cpu01"));  // as in ssh: letter case counts for Host
  CHECK(shape.signature("gpu01") != shape.signature("cpu01"));
  CHECK(shape.signature("gpu09") == shape.signature("cpu01"));
  CHECK_FALSE(shape.signature("gpu01").empty());
  CHECK_FALSE(SshConfigShape().signature("any").empty());
}

TEST_CASE("files that can tell any two hosts apart need one query per host") {
  for (const char* text :
       {"Match host gpu01\n User x\n", "Host gpu*\n HostName %h.cluster\n", "CanonicalizeHostname yes\n",
        "UserKnownHostsFile ~/.ssh/known/%k\n", "match exec \"test -f x\"\n", "HostName=%h\n"}) {
    SshConfigShape shape;
    shape.add(text);
    CAPTURE(text);
    CHECK(shape.signature("gpu01").empty());
  }
  for (const char* text :
       {"Match all\n User x\n", "CanonicalizeHostname no\n", "Host *\n ControlPath ~/.ssh/%C\n", ""}) {
    SshConfigShape shape;
    shape.add(text);
    CAPTURE(text);
    CHECK_FALSE(shape.signature("gpu01").empty());
  }
  // For host a, `HostName a` gives the same output as no HostName.
  SshConfigShape alias;
  alias.add("Host a b\n HostName a\n");
  CHECK(alias.signature("a").empty());
  CHECK_FALSE(alias.signature("b").empty());
}

// ---- the greeting of a server that cannot be used

TEST_CASE("a greeting of no SSH server or of an old one is named") {
  for (const char* good : {"SSH-2.0-OpenSSH_9.2p1 Debian-2", "SSH-1.99-Cisco", "SSH-2.0-dropbear"})
    CHECK_FALSE(wrong_greeting(good).has_value());
  CHECK(wrong_greeting("SSH-1.5-OpenSSH_2.3") ==
        "only supports SSH version 1 (SSH-1.5-OpenSSH_2.3), which current clients refuse; update its SSH "
        "server");
  CHECK(wrong_greeting("220 mail ESMTP\x1b\r") ==
        "is not an SSH server: its first line is \"220 mail ESMTP??\"; check the port (port= in the "
        "hostfile, Port in the SSH configuration)");
  CHECK(wrong_greeting(std::string(5000, 'x'))->size() < 250);
}
