// MarkSearch first, which reads environments in a child; then TreeKill, which finds, stops and kills a tree
// with its help; and last reaping.
#include "launcher/keeper/process_tree.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "base/child_process.h"
#include "base/program.h"
#include "base/text.h"
#include "launcher/keeper/cgroup.h"
#include "launcher/keeper/process_table.h"

namespace ddp::launcher {
namespace {

/// Reading one environment takes microseconds, so a busy machine does not explain a silence of this length.
constexpr std::chrono::milliseconds kStall{500};
/// The time for a reader to die of its SIGKILL, which takes longer than a few ms only on a busy machine. A
/// reader that the kernel holds longer is not waited for, and remains as a zombie.
constexpr std::chrono::milliseconds kDeathTime{500};
constexpr std::size_t kMaxEnvironment = 4u << 20;
/// The number of times that a process is read again, 1 ms apart, until its exec has given it an environment.
constexpr int kExecTries = 100;
constexpr int kEmptyTries = 2;

/// The reader answers for each process in turn: LOCAL_RANK, or one of these.
constexpr int kNoNumber = -1;
constexpr int kUnmarked = -2;
constexpr int kUnread = -3;     ///< its exec did not come to an end
constexpr int kHidden = -4;     ///< it has no environment, or none that we may read
constexpr int kElsewhere = -5;  ///< it has ended, or another job's mark

int mark_in(std::string_view environment, std::string_view mark) {
  const auto rank = entry_value(environment, "LOCAL_RANK");
  const bool ours = has_entry(environment, mark);
  if (!ours && entry_value(environment, "DDPLAUNCH_JOB_ID")) return kElsewhere;
  if (!ours || !rank) return kUnmarked;
  const int number = parse_number<int>(*rank).value_or(kNoNumber);
  return number >= 0 ? number : kNoNumber;
}

/// Returns the first bytes of /proc/`pid`/`name`. Unset: it cannot be opened.
std::optional<std::string_view> read_proc_file(pid_t pid, std::string_view name, std::span<char> buffer) {
  char path[32] = "/proc/";
  char* end = std::to_chars(path + 6, path + sizeof path, pid).ptr;
  *end++ = '/';
  *std::copy(name.begin(), name.end(), end) = '\0';
  // A plain descriptor and no UniqueFd or std::string: this runs in the reader, after a clone without exec.
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::size_t size = 0;
  while (size < buffer.size()) {
    const ssize_t count = read(fd, buffer.data() + size, buffer.size() - size);
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  close(fd);
  return std::string_view(buffer.data(), size);
}

/// Returns whether an environment that was read as empty really is. Otherwise the process was within an exec,
/// where the old environment goes before the new one comes. A kernel thread has no memory, so no environment.
/// `tries`: how often it was read as empty before. One look is not enough: while the kernel counts the
/// variables of a new environment, its end still equals its begin.
bool has_no_environment(pid_t pid, std::span<char> buffer, int tries) {
  std::string_view rest = read_proc_file(pid, "stat", buffer).value_or("");
  // Field 2 is the name in brackets, which may itself contain brackets and blanks, so the last bracket
  // counts.
  rest.remove_prefix(std::min(rest.rfind(')'), rest.size()));
  const auto word = [&rest](int count) {  // the word that stands so many behind the last one
    for (; count > 0; --count)
      rest.remove_prefix(std::min(rest.find(' ', 1), rest.size()));
    return rest.substr(0, rest.find(' ', 1));
  };
  const std::string_view size = word(21);   // field 23 of proc(5): size of the memory
  const std::string_view begin = word(27);  // field 50: begin of the environment; 0: not there yet
  return size == " 0" || size.empty() || (tries >= kEmptyTries && begin != " 0" && begin == word(1));
}

/// Returns an empty text if there is none for us. Unset: the process was within an exec at each try.
std::optional<std::string_view> read_environment(pid_t pid, int fd, std::span<char> buffer) {
  for (int tries = 0; tries < kExecTries; ++tries) {
    const auto text = read_proc_file(pid, "environ", buffer);
    if (!text || !text->empty() || has_no_environment(pid, buffer, tries)) return text.value_or("");
    wait_for_end(fd, std::chrono::milliseconds(1));
  }
  return std::nullopt;
}

/// Sends the descriptor of a marked process along. False: the receiver is gone.
bool send_answer(int socket, int answer, int fd) {
  iovec bytes{&answer, sizeof answer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (answer > kUnmarked) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    std::copy_n(reinterpret_cast<const char*>(&fd), sizeof fd, CMSG_DATA(head));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof answer;
}

/// Receives one answer, and the descriptor that came with it. Returns what recvmsg returns.
ssize_t receive_answer(int socket, int& answer, UniqueFd& fd) {
  iovec bytes{&answer, sizeof answer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* head = size > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (head != nullptr) {
    int received = -1;
    std::copy_n(CMSG_DATA(head), sizeof received, reinterpret_cast<unsigned char*>(&received));
    fd.reset(received);
  }
  return size;
}

/// The code of the child. Another thread of the parent may have held any lock, so only system calls are made.
/// All signals are blocked, because the parent's handlers must not run in the child.
[[noreturn]] void read_all(std::span<const pid_t> pids, std::string_view mark, std::span<char> buffer,
                           int answers, pid_t parent) {
  prctl(PR_SET_NAME, "ddp-mark-search", 0, 0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != parent) _exit(0);
  // Nothing but the socket stays open: a descriptor of the parent that the reader held would delay an end of
  // file that others wait for.
  dup2(answers, 0);
  close_descriptors(1, ~0U);
  for (const pid_t pid : pids) {
    // Open the descriptor first, so that the environment belongs to its process.
    const UniqueFd fd = open_process(pid);
    int answer = kElsewhere;
    if (fd) {
      const auto environment = read_environment(pid, fd.get(), buffer);
      answer = !environment ? kUnread : environment->empty() ? kHidden : mark_in(*environment, mark);
      if (has_ended(fd.get())) answer = kElsewhere;
    }
    if (!send_answer(0, answer, fd.get())) _exit(0);
  }
  _exit(0);
}

}  // namespace

MarkSearch::MarkSearch(std::string_view job_id, std::vector<pid_t> pids)
    : mark_("DDPLAUNCH_JOB_ID=" + std::string(job_id)), pids_(std::move(pids)) {
  start_reader();
}

MarkSearch::~MarkSearch() {
  stop_reader();
}

/// Uses clone, not fork: code that reaps our children must not see a child without an exit signal.
void MarkSearch::start_reader() {
  int ends[2];
  if (is_over()) return;
  // The child must not allocate, so it gets its memory from the parent.
  const auto buffer = std::make_unique_for_overwrite<char[]>(kMaxEnvironment);
  stalled_at_ = Clock::now() + kStall;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return skip_to(pids_.size());
  answers_.reset(ends[0]);
  const UniqueFd write_end(ends[1]);
  const SignalsBlocked mask;
  const pid_t parent = getpid();
  reader_ = static_cast<pid_t>(syscall(SYS_clone, 0UL, 0UL, 0UL, 0UL, 0UL));
  if (reader_ == 0)
    read_all(std::span(pids_).subspan(next_), mark_, {buffer.get(), kMaxEnvironment}, write_end.get(),
             parent);
  if (reader_ < 0) skip_to(pids_.size());
}

void MarkSearch::skip_to(std::size_t next) {
  unproven_.insert(unproven_.end(), pids_.begin() + static_cast<std::ptrdiff_t>(next_),
                   pids_.begin() + static_cast<std::ptrdiff_t>(next));
  next_ = next;
  skipped_ = true;
}

void MarkSearch::stop_reader() {
  if (reader_ <= 0) return;
  kill(reader_, SIGKILL);  // only this object reaps the reader, so the number is still valid
  const auto until = Clock::now() + kDeathTime;
  while (waitpid(reader_, nullptr, WNOHANG | __WCLONE) == 0 && Clock::now() < until)
    poll(nullptr, 0, 1);
  reader_ = -1;
}

std::vector<MarkedProcess> MarkSearch::take_found() {
  std::vector<MarkedProcess> found;
  bool ended = false;
  while (!is_over()) {
    int answer = kUnmarked;
    UniqueFd fd;
    const ssize_t size = receive_answer(answers_.get(), answer, fd);
    if (size < 0 && errno == EINTR) continue;
    ended = size == 0;  // the reader was killed
    if (size <= 0) break;
    // Answers come in the order of the pids, one for each, so a count says whose answer it is.
    if (fd) found.push_back({pids_[next_], answer, std::move(fd)});
    skipped_ = skipped_ || answer == kUnread;
    if (answer <= kUnmarked && answer != kElsewhere) unproven_.push_back(pids_[next_]);
    ++next_;
    stalled_at_ = Clock::now() + kStall;
  }
  if (is_over() || (!ended && Clock::now() < stalled_at_)) return found;
  stop_reader();
  // The process at which the reader hangs is left out. A new reader continues behind it.
  skip_to(next_ + 1);
  start_reader();
  return found;
}

void MarkSearch::wait(std::chrono::milliseconds limit) const {
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(stalled_at_ - Clock::now());
  pollfd news{answers_.get(), POLLIN, 0};
  if (!is_over())
    poll(&news, 1, static_cast<int>(std::clamp(rest, std::chrono::milliseconds(0), limit).count()));
}

bool is_search_reader(pid_t child) {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT | __WCLONE) == 0;
}

namespace {

/// A tree that does not come to rest in this time is killed while it runs.
constexpr std::chrono::milliseconds kFreezeBound{1000};
/// Descriptors kept free for reading /proc and for the caller.
constexpr rlim_t kSpareDescriptors = 32;
/// The time between two polls of a running search.
constexpr std::chrono::milliseconds kSearchPause{20};

/// Empty: no such process, or no free descriptor (sets `crowded`).
UniqueFd open_if_spare(pid_t pid, bool& crowded) {
  UniqueFd fd = open_process(pid);
  rlimit limit{};
  if (!fd) {
    crowded = crowded || errno == EMFILE || errno == ENFILE;
  } else if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
             static_cast<rlim_t>(fd.get()) + kSpareDescriptors > limit.rlim_cur) {
    crowded = true;
    fd.reset();
  }
  return fd;
}

bool is_ancestor_of_us(pid_t pid, const ProcessMap& table) {
  return find_upwards(table, getpid(), [pid](const ProcessInfo& info) { return info.parent == pid; }) != 0;
}

bool is_below_another_keeper(pid_t pid, const ProcessMap& table) {
  return find_upwards(table, pid, [](const ProcessInfo& info) {
           return info.comm == kKeeperName && info.pid != getpid();
         }) != 0;
}

}  // namespace

std::string LeftProcess::text() const {
  std::string text =
      std::to_string(pid) + " (" + comm + ", state " + state + ", uid " + std::to_string(uid) + ")";
  if (err == EPERM) text += ", no permission to signal it";
  return text;
}

TreeKill::TreeKill(TreeScope scope, std::chrono::milliseconds bound,
                   std::optional<std::vector<KnownProcess>> only)
    : scope_(std::move(scope)),
      chosen_(only.has_value()),
      give_up_(Clock::now() + bound),
      freeze_until_(Clock::now() + std::min(bound / 2, kFreezeBound)) {
  if (!only) return;
  for (KnownProcess& child : *only) {
    const auto info = read_process(child.pid);
    // Check the end after the read, so that `info` belongs to the descriptor's process.
    if (child.fd && info && info->parent == getpid() && !has_ended(child.fd.get()))
      adopt(child.pid, std::move(child.fd), false);
  }
}

TreeKill::TreeKill(TreeKill&&) noexcept = default;
TreeKill::~TreeKill() = default;

bool TreeKill::step() {
  if (phase_ == KillPhase::kDone) return true;
  crowded_ = false;
  drop_dead();
  std::size_t fresh = kill_cgroup();
  ProcessMap table;
  visit_processes([&](ProcessInfo&& info) {
    // Take it at once if its parent is known: a process that keeps forking and exiting is gone after the
    // pass. A process that we may not stop goes on forking, so waiting for it to rest would be in vain.
    const bool ours = (info.parent == getpid() || members_.contains(info.parent)) && !kept(info);
    if (ours && info.state == 'Z') {
      if (ended_meanwhile(info)) ++fresh;
    } else if (ours && !members_.contains(info.pid) && add_member(info.pid) && members_[info.pid].err == 0) {
      ++fresh;
    }
    table.emplace(info.pid, std::move(info));
  });
  fresh += take_new(table);
  fresh += take_marked(table);
  // Two phases: while new processes appear, all are stopped; a tree that is at rest cannot fork any more and
  // is then killed at once.
  const auto now = Clock::now();
  bool retry_later = fresh > 0 || crowded_;
  if (phase_ == KillPhase::kFreeze &&
      ((fresh == 0 && all_stopped(table)) || crowded_ || now >= freeze_until_)) {
    phase_ = KillPhase::kKill;
    // Only a later pass proves that no process was forked in between.
    retry_later = !members_.empty();
    for (auto& [pid, member] : members_)
      signal(pid, member, SIGKILL);
  }
  drop_dead();
  const bool only_foreign =
      std::all_of(members_.begin(), members_.end(), [](const auto& m) { return m.second.err != 0; });
  // Last, since it reads the environments of all other processes of the user. It runs again after each find.
  const bool searched = phase_ == KillPhase::kKill && !retry_later && search(table);
  const bool over = searched && only_foreign;
  if (over || now >= give_up_) phase_ = KillPhase::kDone;
  complete_ = complete_ && (over || phase_ != KillPhase::kDone);
  if (phase_ == KillPhase::kDone) search_.reset();
  return phase_ == KillPhase::kDone;
}

/// Adopts the members of the control group, so that their end is waited for. The group's kill ends them; no
/// fork outruns it.
std::size_t TreeKill::kill_cgroup() {
  if (!scope_.cgroup) return 0;
  std::vector<KnownProcess> opened;
  for (const pid_t pid : scope_.cgroup->pids()) {
    if (!members_.contains(pid)) opened.push_back({pid, open_if_spare(pid, crowded_)});
  }
  // A pid that is listed again after its descriptor was opened was not reused.
  const std::vector<pid_t> listed = scope_.cgroup->pids();
  for (auto& [pid, fd] : opened) {
    if (!fd || has_ended(fd.get()) || !std::binary_search(listed.begin(), listed.end(), pid)) continue;
    adopt(pid, std::move(fd), true);
  }
  if (!listed.empty()) scope_.cgroup->kill();
  return opened.size();
}

/// A zombie that we did not kill may have forked just before it ended, too late for this pass to see the
/// child.
bool TreeKill::ended_meanwhile(const ProcessInfo& info) {
  const auto stat =
      taken_.contains(info.pid) ? std::nullopt : read_stat(info.pid);  // a zombie executes nothing
  return stat && std::exchange(ended_[info.pid], stat->started) != stat->started;
}

bool TreeKill::kept(const ProcessInfo& info) const {
  if (info.parent != getpid()) return false;
  return (chosen_ && !members_.contains(info.pid)) || is_search_reader(info.pid);
}

/// Takes in every descendant, from the top down, and the marked processes with their descendants.
std::size_t TreeKill::take_new(const ProcessMap& table) {
  std::multimap<pid_t, pid_t> children;
  for (const auto& [pid, info] : table)
    children.emplace(info.parent, pid);
  std::vector<pid_t> reached{getpid()};
  for (const auto& [pid, member] : members_)
    reached.push_back(pid);
  std::size_t fresh = 0;
  for (std::size_t i = 0; i < reached.size(); ++i) {
    const auto [from, to] = children.equal_range(reached[i]);
    for (auto child = from; child != to; ++child) {
      const pid_t pid = child->second;
      if (kept(table.at(pid))) continue;
      if (!members_.contains(pid)) {
        if (!add_member(pid)) {
          // The process ended during the pass; only the next pass shows its children.
          if (table.at(pid).state != 'Z') ++fresh;
          continue;
        }
        if (members_[pid].err == 0) ++fresh;
      }
      reached.push_back(pid);
    }
  }
  return fresh;
}

/// Returns true when no search is left to do: the last one found nothing.
bool TreeKill::search(const ProcessMap& table) {
  if (search_) return false;
  if (scope_.job_id.empty() || !std::exchange(search_again_, false)) return true;
  std::vector<ProcessInfo> suspects;
  for (const auto& [pid, info] : table) {
    if (!searched_.contains(pid) && may_be_marked(info, table)) suspects.push_back(info);
  }
  // Read processes in state D last: they may hold the locks that the reader needs.
  std::stable_partition(suspects.begin(), suspects.end(), [](const auto& info) { return info.state != 'D'; });
  std::vector<pid_t> pids;
  for (const ProcessInfo& info : suspects) {
    pids.push_back(info.pid);
    searched_.insert(info.pid);
  }
  if (pids.empty()) return true;
  search_ = std::make_unique<MarkSearch>(scope_.job_id, std::move(pids));
  return false;
}

bool TreeKill::may_be_marked(const ProcessInfo& info, const ProcessMap& table) const {
  return info.pid != getpid() && info.state != 'Z' && !members_.contains(info.pid) && !kept(info) &&
         info.uid == geteuid() && !is_ancestor_of_us(info.pid, table) &&
         !is_below_another_keeper(info.pid, table);
}

/// Adopts what the running search has found so far.
std::size_t TreeKill::take_marked(const ProcessMap& table) {
  if (!search_) return 0;
  std::size_t fresh = 0;
  for (MarkedProcess& found : search_->take_found())
    if (adopt_found(std::move(found), table)) ++fresh;
  complete_ = complete_ && !search_->skipped();
  if (search_->is_over()) search_.reset();
  return fresh;
}

/// True if the process has become a member. The order makes this safe: open a descriptor, read the process,
/// then check that its parent was still alive.
bool TreeKill::add_member(pid_t pid) {
  UniqueFd fd = open_if_spare(pid, crowded_);
  if (!fd || has_ended(fd.get())) return false;
  const auto info = read_process(pid);
  if (!info) return false;
  if (info->parent != getpid()) {
    const auto parent = members_.find(info->parent);
    if (parent == members_.end() || has_ended(parent->second.fd.get())) return false;
  }
  if (has_ended(fd.get())) return false;
  adopt(pid, std::move(fd), false);
  return true;
}

/// Adopts a process that carries the mark.
bool TreeKill::adopt_found(MarkedProcess found, const ProcessMap& table) {
  const auto info = table.find(found.pid);
  if (info == table.end() || !may_be_marked(info->second, table) || has_ended(found.fd.get())) return false;
  search_again_ = true;
  phase_ = KillPhase::kFreeze;  // it may fork, too
  freeze_until_ = Clock::now() + kFreezeBound;
  adopt(found.pid, std::move(found.fd), false);
  return true;
}

void TreeKill::adopt(pid_t pid, UniqueFd fd, bool grouped) {
  TreeProcess& member = members_[pid];
  member.grouped = grouped;
  member.fd = std::move(fd);
  if (taken_.insert(pid).second) ++found_;
  signal(pid, member, phase_ == KillPhase::kFreeze ? SIGSTOP : SIGKILL);
}

bool TreeKill::all_stopped(const ProcessMap& table) const {
  return std::all_of(members_.begin(), members_.end(), [&table](const auto& entry) {
    const auto info = table.find(entry.first);
    if (entry.second.err != 0 || info == table.end()) return true;
    // D is a parent inside vfork, or a process stuck in the kernel; SIGKILL takes effect before it can fork
    // again.
    return std::string_view("TtDZX").find(info->second.state) != std::string_view::npos;
  });
}

void TreeKill::signal(pid_t pid, TreeProcess& member, int number) {
  if (member.err != 0) return;
  const int err = signal_process(member.fd.get(), pid, number);
  // Members of a control group are ended by its kill, whoever they belong to. That we may not signal them
  // proves nothing.
  if (err != ESRCH && !member.grouped) member.err = err;
}

void TreeKill::wait(std::chrono::milliseconds limit) {
  if (phase_ == KillPhase::kFreeze) limit = std::min(limit, std::chrono::milliseconds(1));
  const auto until = std::min(Clock::now() + limit, give_up_);
  if (search_) return search_->wait(std::min(limit, kSearchPause));
  const auto rest = [until] {
    return std::max(std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()),
                    std::chrono::milliseconds(0));
  };
  // Nothing reports that a process has stopped, so this phase looks every millisecond.
  if (phase_ == KillPhase::kFreeze) {
    poll(nullptr, 0, static_cast<int>(rest().count()));
    return;
  }
  for (const auto& [pid, member] : members_) {
    if (member.err == 0) wait_for_end(member.fd.get(), rest());
  }
}

std::vector<LeftProcess> TreeKill::left() const {
  std::vector<LeftProcess> left;
  for (ProcessInfo& info : list_processes()) {
    const auto member = members_.find(info.pid);
    const bool known = member != members_.end() && !has_ended(member->second.fd.get());
    // A process that always exited before it could be stopped has been re-parented to us.
    const bool escaped = info.parent == getpid() && info.state != 'Z' && !kept(info);
    if (!known && !escaped) continue;
    const int err = known ? member->second.err : 0;
    left.push_back({info.pid, info.uid, info.state, std::move(info.comm), err});
  }
  return left;
}

std::vector<LeftProcess> kill_own_tree(const TreeScope& scope, std::chrono::milliseconds bound) {
  TreeKill kill(scope, bound);
  while (!kill.step())
    kill.wait(bound);
  return kill.left();
}

bool has_children() {
  siginfo_t info = {};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

std::size_t reap_adopted(std::span<const pid_t> owned) {
  const auto is_owned = [owned](pid_t pid) {
    return std::find(owned.begin(), owned.end(), pid) != owned.end();
  };
  std::size_t reaped = 0;
  for (;;) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return reaped;
    if (is_owned(info.si_pid)) break;
    if (waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG) == 0) ++reaped;
  }
  // An owned zombie that comes first hides the others; only /proc shows them.
  for (const ProcessInfo& process : list_processes()) {
    if (process.parent != getpid() || process.state != 'Z' || is_owned(process.pid)) continue;
    siginfo_t info = {};
    if (waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0)
      ++reaped;
  }
  return reaped;
}

}  // namespace ddp::launcher
