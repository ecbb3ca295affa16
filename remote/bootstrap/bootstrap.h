#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddp::remote {

/// The agent's first line on stdout is "ddplaunchd-hello <protocol> <version>\n"
/// (docs/developers/protocol.md). The framed protocol follows its newline. Text before this line comes from
/// the host's login shell or its start-up files.
inline constexpr std::string_view kHelloPrefix = "ddplaunchd-hello ";
/// The lines of a host that needs the agent (docs/developers/protocol.md): "ddplaunchd-need MACHINE CODE …",
/// "ddplaunchd-send INDEX", "ddplaunchd-fail REASON". A host that starts an agent prints "ddplaunchd-runs
/// PATH".
inline constexpr std::string_view kNeedPrefix = "ddplaunchd-need ";
inline constexpr std::string_view kSendPrefix = "ddplaunchd-send ";
inline constexpr std::string_view kFailPrefix = "ddplaunchd-fail ";
inline constexpr std::string_view kRunsPrefix = "ddplaunchd-runs ";
inline constexpr std::size_t kBootstrapLimit =
    64 * 1024;                                  ///< bytes of stdout that may come before the greeting ends
inline constexpr std::size_t kNoiseLines = 20;  ///< lines kept of each stream, for messages

struct AgentHello {
  int protocol = 0;
  std::string version;
};

/// The answer of a host that has no agent of this build.
struct AgentNeed {
  std::string machine;  ///< the output of `uname -m`
  std::vector<int>
      attempts;  ///< exit code of each agent that was tried, the installed one first (kSameVersion, 127, …)
};
/// Exit code of `ddplaunchd --fits` when protocol and version are the same and only the build differs.
inline constexpr int kSameVersion = 3;
/// The code for an agent that was not executed, because other users could replace it.
inline constexpr int kDistrusted = 255;
/// A host's line on stderr about such a program begins with this text.
inline constexpr std::string_view kNotUsed = "not used: ";

/// Returns the line that an agent prints and that Bootstrap reads.
std::string hello_line(const AgentHello& hello);

/// Keeps the last lines of a text stream, safe to print: control bytes become '?', long lines are cut.
class TailLines {
 public:
  void feed(std::string_view bytes);
  /// Returns the kept lines, an unfinished last line included, each after a newline and `indent`. The text is
  /// empty if there are no lines.
  std::string text(std::string_view indent = "  ") const;
  std::deque<std::string> lines() const;
  bool empty() const { return lines_.empty() && open_.empty(); }

 private:
  void finish_line();
  std::deque<std::string> lines_;
  std::string open_;
};

/// Sans-IO: reads a remote command's stdout up to the agent's hello line, and explains the failure if no
/// hello comes.
///
/// The driver's duties:
/// 1. Feed every byte of stdout, until feed() no longer returns kReading.
/// 2. Feed stderr as it comes.
/// 3. At kNeed send the script, at kSend the file, and then call advance().
/// 4. At end of file, deadline or kFailed ask ended(), timed_out() or failure() for the Error, once.
class Bootstrap {
 public:
  enum class State { kReading, kNeed, kSend, kHello, kFailed };
  /// The kind of command: kNone executes the agent directly; kGiven is given_lookup(); kPush is
  /// first_lookup(), so that the host may request the agent.
  enum class Lookup { kNone, kGiven, kPush };

  /// `host` is the name the user knows. `agent` is the expected path of the agent. `intermediary` names what
  /// must work before the lookup begins, for example "the login shell there".
  Bootstrap(std::string host, std::string agent, Lookup lookup = Lookup::kNone,
            std::string intermediary = "the login shell there");

  State feed(std::string_view bytes);
  void feed_errors(std::string_view bytes) { errors_.feed(bytes); }

  State state() const { return state_; }
  const AgentHello& hello() const { return hello_; }
  const AgentNeed& need() const { return need_; }    ///< valid from kNeed on
  std::size_t wanted_file() const { return sent_; }  ///< at kSend: the index; each index comes once, in order
  /// Reads the bytes behind the line of kNeed or kSend. Call it once for each of these states.
  State advance();
  /// The path of the started agent, as the host printed it. Empty if no agent started, or if the command has
  /// no lookup.
  const std::string& began() const { return began_; }
  /// The bytes after the hello line: the start of the framed protocol.
  const std::string& rest() const { return rest_; }
  /// The host's output before the hello line, to show as the host's own.
  std::deque<std::string> noise() const { return noise_.lines(); }

  /// Returns why feed() failed. kAgentMismatch: the hello line is damaged, or too much text came before it.
  /// kAgentMissing: the host cannot take the agent.
  Error failure() const;
  /// The error for a stdout that ended before the hello line. `status` is as a shell has it (128+n for
  /// signals), and unset when the connection broke. kUnreachable: no line of ddplaunch came, so the way to
  /// the host failed. kAgentMissing: there is no such program. Any other case is kAgentMismatch.
  Error ended(std::optional<int> status) const;
  Error timed_out() const;  ///< kTimeout

 private:
  void read_line(const std::string& line);
  void read_hello(std::string_view line);
  void read_need(std::string_view words);
  void read_send(std::string_view words);
  void damage(std::string_view line);
  std::string last_lines() const;

  std::string host_;
  std::string agent_;
  Lookup lookup_;
  std::string intermediary_;
  std::string began_;
  State state_ = State::kReading;
  std::string pending_;  ///< the line being read
  std::size_t consumed_ = 0;
  std::string damaged_;   ///< a hello line that could not be read
  std::string refused_;   ///< the host's own reason why it cannot take the agent
  bool spoken_ = false;   ///< a line of ddplaunch came, so the way to the host works
  bool printed_ = false;  ///< a line came as an echo that no shell has run
  bool asked_ = false;    ///< kNeed was reached
  std::size_t sent_ = 0;  ///< files asked for before this one
  AgentNeed need_;
  AgentHello hello_;
  std::string rest_;
  TailLines noise_;
  TailLines errors_;
};

/// Returns kAgentMismatch when the agent's protocol or version differs from this program's.
Result<void> check_hello(const std::string& host, const AgentHello& theirs, const AgentHello& ours);

/// The facts that the first command needs about the agents that can be pushed.
struct AgentWanted {
  std::string path;               ///< expected path of an installed agent
  AgentHello hello;               ///< protocol and version that an agent must have
  std::vector<std::string> keys;  ///< keys of the pushed agents that fit, one for each kind of machine
  bool train = false;             ///< `train` must lie beside the agent
};

/// One file to push; `sha256` is in lower-case hex.
struct PushedFile {
  std::string name;
  std::size_t size = 0;
  std::string sha256;
};

/// Returns the command that starts an agent on a host that may have none. It runs the installed agent if that
/// is of this build, else the agent in the user's cache. Else it prints "ddplaunchd-need" and runs the script
/// that it then receives (docs/developers/protocol.md, Bootstrap). It is one short program for `sh -c` under
/// any login shell. An agent that is found at once needs no second round trip.
///
/// The command prints "ddplaunchd-runs PATH" when it becomes an agent. It tries no existing agent if `anew`
/// is set, because one that it found before sent no hello.
std::vector<std::string> first_lookup(const AgentWanted& wanted, bool anew = false);

/// Returns the command that runs the agent at a given path: `argv` (the path first) behind a test that the
/// file can be executed. The test prints "ddplaunchd-runs PATH" or "ddplaunchd-fail REASON". A failure of a
/// login shell or a wrapper is therefore never reported as a failure of the agent.
std::vector<std::string> given_lookup(const std::vector<std::string>& argv);

/// Returns the answer to "ddplaunchd-need": a line with the script's length, then the script. The script
/// looks for a place (docs/users/nodes.md), requests the files one by one, checks them, and becomes the
/// agent. `files` must end with "ddplaunchd": its presence shows that the set is complete. `key` names the
/// set. `anew` replaces what exists.
std::string push_script(const AgentWanted& wanted, std::string_view key, const std::vector<PushedFile>& files,
                        bool anew = false);

/// The same for a machine that no file can be pushed to and whose installed agent has the same version.
std::string installed_script();

}  // namespace ddp::remote
