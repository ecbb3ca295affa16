// The host's lines as the master reads them, and what their absence means. Then the scripts that hosts run,
// which any POSIX shell must understand.
#include "remote/bootstrap/bootstrap.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/exit_status.h"
#include "base/result.h"
#include "base/text.h"

namespace ddp::remote {
namespace {

constexpr std::size_t kLongestShownLine = 400;
constexpr std::size_t kLongestVersion = 64;

bool is_version(std::string_view text) {
  constexpr std::string_view kCharacters =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.+-_~";
  return !text.empty() && text.size() <= kLongestVersion &&
         text.find_first_not_of(kCharacters) == std::string_view::npos;
}

std::string printable(std::string_view line) {
  std::string text = replace_unsafe(line.substr(0, kLongestShownLine));
  if (line.size() > kLongestShownLine) text += "...";
  return text;
}

std::optional<AgentHello> parse_hello(std::string_view words) {
  const std::size_t space = std::min(words.find(' '), words.size());
  const auto protocol = parse_number<int>(words.substr(0, space));
  const std::string_view version = words.substr(std::min(space + 1, words.size()));
  if (!protocol || *protocol < 1 || !is_version(version)) return std::nullopt;
  return AgentHello{*protocol, std::string(version)};
}

std::string install_advice() {
  return "install the same version there or name it with --agent PATH";
}

}  // namespace

std::string hello_line(const AgentHello& hello) {
  DDP_REQUIRE(hello.protocol > 0 && is_version(hello.version), hello.protocol, hello.version);
  return concat(kHelloPrefix, hello.protocol, ' ', hello.version, '\n');
}

void TailLines::finish_line() {
  if (!open_.empty() && open_.back() == '\r') open_.pop_back();
  if (!open_.empty()) lines_.push_back(printable(open_));
  if (lines_.size() > kNoiseLines) lines_.pop_front();
  open_.clear();
}

void TailLines::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, newline);
    // One byte more than the shown length marks the line as cut; the rest of the line is dropped.
    const std::size_t room = kLongestShownLine + 1 - std::min(open_.size(), kLongestShownLine + 1);
    open_ += piece.substr(0, room);
    if (newline == std::string_view::npos) return;
    finish_line();
    bytes.remove_prefix(newline + 1);
  }
}

std::deque<std::string> TailLines::lines() const {
  std::deque<std::string> all = lines_;
  if (!open_.empty()) all.push_back(printable(open_));
  return all;
}

std::string TailLines::text(std::string_view indent) const {
  std::string text;
  for (const std::string& line : lines()) {
    text += '\n';
    text += indent;
    text += line;
  }
  return text;
}

Bootstrap::Bootstrap(std::string host, std::string agent, Lookup lookup, std::string intermediary)
    : host_(std::move(host)),
      agent_(std::move(agent)),
      lookup_(lookup),
      intermediary_(std::move(intermediary)),
      spoken_(lookup == Lookup::kNone) {}

Bootstrap::State Bootstrap::feed(std::string_view bytes) {
  DDP_REQUIRE(state_ != State::kReading || rest_.empty(), rest_.size());  // bytes are read in their order
  while (state_ == State::kReading && !bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    pending_ += bytes.substr(0, newline);
    consumed_ += newline == std::string_view::npos ? bytes.size() : newline + 1;
    // Noise counts as well: a start-up file that prints for ever must not fill the memory.
    if (consumed_ > kBootstrapLimit) {
      noise_.feed(pending_);
      state_ = State::kFailed;
      break;
    }
    if (newline == std::string_view::npos) break;
    bytes.remove_prefix(newline + 1);
    read_line(std::exchange(pending_, {}));
  }
  // What follows the line belongs to whoever reads next: the framed protocol, or advance().
  if (state_ != State::kReading && state_ != State::kFailed) rest_ += bytes;
  return state_;
}

Bootstrap::State Bootstrap::advance() {
  DDP_REQUIRE(state_ == State::kNeed || state_ == State::kSend, state_);
  if (state_ == State::kSend) ++sent_;
  state_ = State::kReading;
  return feed(std::exchange(rest_, {}));
}

void Bootstrap::read_line(const std::string& line) {
  // The prefix may stand inside a line: a start-up file may print a prompt without a newline.
  std::size_t start = line.find(kHelloPrefix);
  std::string_view prefix = kHelloPrefix;
  if (lookup_ != Lookup::kNone && start == std::string::npos) {
    for (const std::string_view other : {kRunsPrefix, kFailPrefix, kNeedPrefix, kSendPrefix}) {
      const bool of_a_push = other == kNeedPrefix || other == kSendPrefix;
      if (start == std::string::npos && (lookup_ == Lookup::kPush || !of_a_push)) {
        start = line.find(other);
        prefix = other;
      }
    }
  }
  const std::string_view found = std::string_view(line).substr(std::min(start, line.size()));
  const std::string_view words = found.substr(std::min(prefix.size(), found.size()));
  if (words.starts_with('$')) {  // unexpanded "$": an echo of the command, which no shell has run
    printed_ = true;
    start = std::string::npos;
  }
  noise_.feed(start == 0 ? std::string() : line.substr(0, start) + "\n");
  if (start == std::string::npos) return;
  spoken_ = true;
  if (prefix == kHelloPrefix) {
    read_hello(found);
  } else if (prefix == kRunsPrefix) {
    began_ = words;
    agent_ = printable(words);
  } else if (prefix == kNeedPrefix) {
    // The host asks once, so a second question shows that the stream is damaged.
    asked_ ? damage(found) : read_need(words);
  } else if (prefix == kSendPrefix) {
    asked_ ? read_send(words) : damage(found);
  } else {
    refused_ = printable(words);
    state_ = State::kFailed;
  }
}

void Bootstrap::damage(std::string_view line) {
  damaged_ = printable(line);
  state_ = State::kFailed;
}

void Bootstrap::read_need(std::string_view words) {
  asked_ = true;
  for (const std::string_view word : split_at_blanks(words)) {
    if (need_.machine.empty())
      need_.machine = printable(word);
    else
      need_.attempts.push_back(leading_number<int>(word).value_or(0));
  }
  state_ = State::kNeed;
}

void Bootstrap::read_send(std::string_view words) {
  const std::string expected = std::to_string(sent_);
  // A terminal on the way ends its lines with CR LF. The check of the received file reports that damage.
  if (words == expected || words == expected + "\r") {
    state_ = State::kSend;
  } else {
    damage(std::string(kSendPrefix) + std::string(words));
  }
}

void Bootstrap::read_hello(std::string_view line) {
  const auto hello = parse_hello(line.substr(kHelloPrefix.size()));
  if (hello) {
    hello_ = *hello;
    state_ = State::kHello;
  } else {
    damage(line);
  }
}

std::string Bootstrap::last_lines() const {
  TailLines out = noise_;
  out.feed(pending_);
  if (out.empty() && errors_.empty()) return "; it wrote nothing";
  return "; its last lines:" + out.text() + errors_.text();
}

Error Bootstrap::failure() const {
  if (!refused_.empty() && lookup_ == Lookup::kGiven)
    return {ErrorCode::kAgentMissing, host_ + ": " + refused_ + "; " + install_advice()};
  if (!refused_.empty()) {
    return {ErrorCode::kAgentMissing, host_ + ": ddplaunchd is not installed there, and copying it failed: " +
                                          refused_ + "; " + install_advice()};
  }
  if (!damaged_.empty()) {
    return {ErrorCode::kAgentMismatch, host_ + ": the greeting of " + agent_ + " cannot be read: \"" +
                                           damaged_ + "\"; " + install_advice()};
  }
  if (!spoken_) {
    return {ErrorCode::kUnreachable, host_ + ": " + intermediary_ +
                                         " printed 64 KiB before the search for ddplaunchd began; check "
                                         "which start-up file prints that much" +
                                         last_lines()};
  }
  return {ErrorCode::kAgentMismatch, host_ + ": 64 KiB came without a greeting of " + agent_ + last_lines()};
}

Error Bootstrap::ended(std::optional<int> status) const {
  if (!status) {
    return {ErrorCode::kUnreachable,
            host_ + ": the connection closed before " + agent_ + " answered" + last_lines()};
  }
  std::string how = "ended with exit status " + std::to_string(*status);
  if (*status > 128 && *status < 128 + NSIG) how += " (128 + " + signal_name(*status - 128) + ")";
  if (!spoken_ && printed_) {
    return {ErrorCode::kUnreachable,
            host_ + ": " + intermediary_ +
                " printed the command behind it and did not run it; it must run it, as "
                "'docker exec -i NAME' does"};
  }
  if (!spoken_) {
    return {ErrorCode::kUnreachable, host_ + ": " + intermediary_ + " " + how +
                                         " before the search for ddplaunchd began" + last_lines()};
  }
  // As shells report it: 127, the command was not found, and 126, it cannot be executed.
  if (*status == 127)
    return {ErrorCode::kAgentMissing, host_ + ": no ddplaunchd at " + agent_ + "; " + install_advice()};
  if (*status == 126) {
    return {ErrorCode::kAgentMismatch,
            host_ + ": " + agent_ + " cannot be executed there; " + install_advice() + last_lines()};
  }
  return {ErrorCode::kAgentMismatch,
          host_ + ": " + agent_ + " " + how + " before its greeting" + last_lines()};
}

Error Bootstrap::timed_out() const {
  return {ErrorCode::kTimeout,
          host_ + ": no greeting of " + agent_ + " before the start limit" +
              (spoken_ ? std::string() : "; is " + intermediary_ + " waiting for something?") + last_lines()};
}

Result<void> check_hello(const std::string& host, const AgentHello& theirs, const AgentHello& ours) {
  if (theirs.protocol == ours.protocol && theirs.version == ours.version) return {};
  return Error{ErrorCode::kAgentMismatch, host + ": its ddplaunchd is version " + theirs.version +
                                              " (protocol " + std::to_string(theirs.protocol) +
                                              "), this ddplaunch is version " + ours.version + " (protocol " +
                                              std::to_string(ours.protocol) + "); " + install_advice()};
}

namespace {

// These scripts run in any POSIX shell: dash, bash, busybox, ksh, zsh. The questions to the agent and its
// answers are described in apps/ddplaunchd/main.cc.
//
// `safe DIRECTORY FILE` applies the rule of base/files.h (distrust_program) by `ls`, in one call for
// the file and all its parents. It sets $a to the file's path without symbolic links. That path must be
// executed, since a link of another user can change after the check. If the file is not safe, $w is the path
// that others may write to, as far as the format of `ls` shows it. `may` tests a file that need not exist,
// and `program` tests if `train` belongs to the agent at a path, as companion_program() finds it.
// No builtin has a redirection here, since dash needs free descriptors for one (see limits).
constexpr std::string_view kSafe =
    "u=; safe() { a=$(cd -P \"$1/\" && pwd -P) || return 1; [ -z \"$2\" ] || a=${a%/}/$2; "
    "q=$a; set --; while [ \"$q\" ]; do set -- \"$q\" \"$@\"; q=${q%/*}; done; set -- / \"$@\"; "
    "w=$(ls -ldn \"$@\" 2>/dev/null | { while read -r m x o g x x x x f; do "
    "case $o in 65534) case $(echo $(head -n 1 /proc/self/uid_map)) in \"0 0 \"*|\"\") ;; *) o=0;; esac;; "
    "esac; "
    "[ $o = 0 ] || [ $o = ${u:=$(id -u)} ] || o=x; "
    R"(case $m,$g in d????????[tT]*|[d-]????-??-*|l*) ;; [d-]????w*+,*) o=x;; [d-]????w??-*,0) ;; )"
    R"([d-]????w??-*) [ $g = $(id -g) ] && [ $g = $(id -u) ] || o=x;; *) o=x;; esac; )"
    "[ $o = x ] && echo \"${f%% -> *}\" && exit 1; shift; done; [ $# = 0 ]; }) || return 1; "
    "[ -L \"$a\" ] || return 0; x=$(readlink \"$a\") || return 1; case $x in /*) ;; *) x=${a%/*}/$x;; esac; "
    "safe \"${x%/*}\" \"${x##*/}\"; }; "
    "may() { [ -e \"$1/$2\" ] || return 127; safe \"$1\" \"$2\" && return; "
    "echo \"not used: $1/$2, since other users could replace ${w:-it}\" | head -n 1 >&2; return "
    "@DISTRUSTED@; }; "
    "program() { x=${1%/*}/../libexec/ddplaunch; [ -e \"$x/train\" ] || x=${1%/*}; "
    "may \"$x\" train && [ -x \"$a\" ]; }; ";

// $i is the installed agent, for kInstalled.
constexpr std::string_view kFirstLookup =
    "c=${XDG_CACHE_HOME:-$HOME/.cache}/ddplaunch f=; "
    "for k in -@KEYS@; do "
    "d=$c/agent-$k; [ $k = - ] && d=${0%/*}; "
    "w= b=; may \"$d\" ddplaunchd && b=$a && @TRAIN@w=$(\"$b\" --fits @FITS@ </dev/null 2>/dev/null); r=$?; "
    "case \"$r@KEYS@ \" in 0*\" $w \"*) echo \"ddplaunchd-runs $b\"; exec \"$b\" --stdio;; esac; "
    "f=\"$f $r\"; [ $k = - ] && i=$b; "
    "done; ";

constexpr std::string_view kNeed =
    "echo \"ddplaunchd-need $(uname -m)$f\"; "
    "read -r n || { echo \"ddplaunchd-fail its standard input is closed (docker exec without -i?)\"; exit 1; "
    "}; "
    "eval \"$(head -c $n)\"";

// Many shells read a text file without #! as a script. This lookup does not prevent that.
constexpr std::string_view kGivenLookup =
    "n() { echo \"ddplaunchd-fail $*\"; exit 1; }; "
    "e=$(command -v \"$0\") || e=$0; "
    "[ -e \"$e\" ] || n \"no ddplaunchd at $0\"; "
    "[ -d \"$e\" ] && n \"$0 is a directory, not the program ddplaunchd\"; "
    "[ -x \"$e\" ] || n \"$0 may not be executed there\"; "
    "safe \"${e%/*}\" \"${e##*/}\" || "
    "n \"$0 is not executed there, since other users could replace ${w:-it}; "
    "without --agent and --no-push, ddplaunch copies its own\"; "
    "echo \"ddplaunchd-runs $a\"; exec \"$a\" \"$@\"";

// This text follows the lines that push_script() writes. It builds its replies to the master from $m, so that
// a terminal that echoes the script (docker exec -t) prints none of them. `why` collects "; PLACE: REASON".
// `bare` removes empty directories, up to the cache itself. Another push that runs at the same time creates
// the cache again.
constexpr std::string_view kPush = R"sh(
m=ddplaunchd u=$(id -u) why= got= summed= t= k=
drop() {
  [ -z "$t" ] || rm -f "$t" "$t"-*
  [ -z "$got" ] || rm -f "$got"-*
  for f in "$k" "${got%/*}"; do [ -z "$f" ] || bare "$f"; done
}
bare() { rmdir "$1" 2>/dev/null && rmdir "${1%/*}" 2>/dev/null; }
trap 'drop 2>/dev/null' EXIT
trap 'exit 1' HUP INT PIPE TERM
fail() { drop 2>/dev/null; echo "$m-fail $*"; exit 1; }
no() { why="$why; $d: $1"; return 1; }
reason() { r=${1%%"
"*}; no "${r##*: }"; }
# A shell that has no descriptors left, or whose file may not grow, gives no reason.
limits() {
  r=$(ulimit -n) && case $r in
    ?|1?|2?|3?) fail "too few open files are allowed there (ulimit -n $r)";;
  esac
}
fits() { safe "${1%/*}" "${1##*/}" && beside "$1" && [ "$("$1" --fits $fits </dev/null 2>/dev/null)" = "$key" ]; }
start() { echo "$m-runs $1"; exec "$1" --stdio; }
ours() {
  set -- $(ls -ldn "$d" 2>/dev/null)
  case "$1 $3" in
    d????-??-*" $u") safe "$d" "" || no "other users could replace ${w:-it}";;
    *) no "it is there, but no directory that only this account may write to";;
  esac
}
place() {
  e=$( { [ -d "${d%/*}" ] || mkdir -p "${d%/*}"; } 2>&1) || reason "$e" || return 1
  [ -d "$d" ] || e=$(mkdir -m 700 "$d" 2>&1) || [ -d "$d" ] || reason "$e" || return 1
  ours || return 1
  k=$d/agent-$key
  for f in $names; do [ ! -d "$k/$f" ] || no "agent-$key/$f is a directory" || return 1; done
  [ -d "$k" ] || mkdir -m 700 "$k" 2>/dev/null || mkdir -m 700 "$d" 2>/dev/null
  [ -d "$k" ] || e=$(mkdir -m 700 "$k" 2>&1) || [ -d "$k" ] || reason "$e" || return 1
  safe "$k" "" || no "other users could replace ${w:-it}" || return 1
  k=$a
  t=$k/.push-$(uname -n)-$$
  e=$(head -c $total /dev/zero 2>&1 >"$t") || {
    rm -f "$t"; bare "$k"; reason "${e:-files may not grow to $total bytes (ulimit -f $(ulimit -f))}"; return 1
  }
  rm -f "$t"
}
take() {
  echo "$m-send $1"
  head -c $3 >"$got-$2" || fail "cannot write $got-$2"
  s=$(wc -c <"$got-$2")
  [ $s -eq $3 ] || fail "$s bytes of $2 arrived instead of $3"
  chmod 700 "$got-$2"
  s=$(sha256sum <"$got-$2" 2>/dev/null)
  [ -n "$s" ] || return 0
  [ "${s%% *}" = $4 ] || damaged $2
  summed=1
}
verify() { [ -n "$summed" ] || "$t-$m" --verify $2 "$t-$1" </dev/null >/dev/null 2>&1 || damaged $1; }
damaged() { fail "$1 arrived damaged; does a terminal stand on the way (docker exec -t)?"; }
leave() { [ "$t" = "$got" ] || rm -f "$t"-*; bare "$k"; return 1; }
copy() {
  [ "$t" != "$got" ] || return 0
  for f in $names; do cp "$got-$f" "$t-$f" && chmod 700 "$t-$f" || return 1; done
}
settle() {
  if [ -z "$anew" ]; then
    ln "$t-$1" "$k/$1" 2>/dev/null && return
    if [ $1 = $m ]; then fits "$k/$m" && return; else [ -x "$k/$1" ] && return; fi
  fi
  mv -f "$t-$1" "$k/$1"
}
keep() {
  e=$(copy 2>&1) || reason "$e" || leave || return 1
  e=$("$t-$m" --fits $fits 2>&1 </dev/null)
  case $? in
    0) ;;
    126) no "programs cannot be run there (mounted noexec?)" || leave || return 1;;
    *) reason "${e:-the agent does not run there}" || leave || return 1;;
  esac
  verify_all
  e=$(runs 2>&1) || fail "$e"
  for f in $names; do e=$(settle $f 2>&1) || reason "$e" || leave || return 1; done
  rm -f "$got"-* "$t"-*
}
sweep() {
  cd "$d" || return
  ls -t | { n=0; while read -r f; do case $f in agent-*)
    n=$((n+1))
    [ $n -le 3 ] || [ -z "$(find "$f" -prune -mtime +30)" ] || rm -rf "./$f";;
  esac; done; }
  cd / && for d; do
    case $d in /*) [ -d "$d" ] && ours && find "$d/." -name ".push-*" -mtime +0 -exec rm -f "{}" ";";; esac
  done
}
limits
set -- "${XDG_CACHE_HOME:+$XDG_CACHE_HOME/ddplaunch}" "${HOME:+$HOME/.cache/ddplaunch}" \
  "/var/tmp/ddplaunch-$u" "${TMPDIR:-/tmp}/ddplaunch-$u" "/dev/shm/ddplaunch-$u"
for d; do
  case $d in /*) ;; *) continue;; esac
  [ -z "$anew" ] && [ -d "$d" ] && ours && safe "$d/agent-$key" $m && b=$a && fits "$b" && start "$b"
done
why=
for d; do
  case $d in /*) ;; *) continue;; esac
  case $why in *"; $d: "*) continue;; esac
  place || continue
  if [ -z "$got" ]; then got=$t; take_all; fi
  keep || continue
  bare "${got%/*}"
  [ -z "$why" ] || echo "ddplaunchd is kept in $d; not in ${why#; }" >&2
  (sweep "$@") >/dev/null 2>&1
  trap - EXIT HUP INT PIPE TERM
  start "$k/$m"
done
fail "no place to put it: ${why#; }"
)sh";

constexpr std::string_view kInstalled = "exec \"$i\" --stdio";

std::string keys_text(const AgentWanted& wanted) {
  std::string words;
  for (const std::string& key : wanted.keys)
    words += " " + key;
  return words;
}

/// The arguments of --fits. They are letters, digits and a few signs, so they need no quoting.
std::string fits_text(const AgentWanted& wanted) {
  return concat(wanted.hello.protocol, ' ', wanted.hello.version, keys_text(wanted));
}

std::string replaced(std::string_view text, std::string_view mark, std::string_view value) {
  std::string made(text);
  for (std::size_t at = 0; (at = made.find(mark, at)) != std::string::npos; at += value.size())
    made.replace(at, mark.size(), value);
  return made;
}

std::string safe_functions() {
  return replaced(kSafe, "@DISTRUSTED@", std::to_string(kDistrusted));
}

std::string with_length(const std::string& script) {
  return std::to_string(script.size()) + "\n" + script;
}

/// csh accepts no longer words than 1,023 bytes.
constexpr std::size_t kMaxWord = 900;

/// The command that runs `script` with the functions of kSafe, for the agent at `path`. Arguments may follow.
std::vector<std::string> with_safe(const std::string& path, const std::string& script) {
  const std::string whole = safe_functions() + script;
  std::vector<std::string> words{"sh", "-c", "p=", path};
  for (std::size_t at = 0; at < whole.size(); at += kMaxWord) {
    words.push_back(whole.substr(at, kMaxWord));
    // The pieces are arguments of sh -c, joined again in $p: $0 is the agent's path, so the first piece is
    // $1.
    words[2] += "${" + std::to_string(words.size() - 4) + '}';
  }
  words[2] += "; shift " + std::to_string(words.size() - 4) + "; eval \"$p\"";
  return words;
}

}  // namespace

std::vector<std::string> first_lookup(const AgentWanted& wanted, bool anew) {
  if (anew) return {"sh", "-c", std::string(kNeed), wanted.path};
  std::string script = replaced(kFirstLookup, "@KEYS@", keys_text(wanted)).append(kNeed);
  script = replaced(script, "@FITS@", fits_text(wanted));
  script = replaced(script, "@TRAIN@", wanted.train ? "program \"$b\" && " : "");
  return with_safe(wanted.path, script);
}

std::vector<std::string> given_lookup(const std::vector<std::string>& argv) {
  std::vector<std::string> words = with_safe(argv.at(0), std::string(kGivenLookup));
  words.insert(words.end(), argv.begin() + 1, argv.end());
  return words;
}

std::string push_script(const AgentWanted& wanted, std::string_view key, const std::vector<PushedFile>& files,
                        bool anew) {
  DDP_REQUIRE(!files.empty() && files.back().name == "ddplaunchd", files.size());
  std::size_t total = 0;
  std::string names;
  std::string takes;
  std::string checks;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const PushedFile& file = files[i];
    total += file.size;
    names += (i == 0 ? "" : " ") + file.name;
    takes += " take " + std::to_string(i) + " " + file.name + " " + std::to_string(file.size) + " " +
             file.sha256 + ";";
    checks += " verify " + file.name + " " + file.sha256 + ";";
  }
  // No value has a character that a shell interprets: see fits_text().
  std::string script = "key=" + std::string(key) + " total=" + std::to_string(total) + " names=\"" + names +
                       "\" fits=\"" + fits_text(wanted) + "\" anew=" + (anew ? "1" : "") + "\n";
  script += safe_functions() + "\n";
  script += "take_all() {" + takes + " }\nverify_all() {" + checks + " }\n";
  if (wanted.train) {
    script += "beside() { program \"$1\"; }\n";
    script += "runs() { \"$t-train\" --version </dev/null 2>&1 >/dev/null; }\n";
  } else {
    script += "beside() { :; }\nruns() { :; }\n";
  }
  return with_length(script.append(kPush));
}

std::string installed_script() {
  return with_length(std::string(kInstalled));
}

}  // namespace ddp::remote
