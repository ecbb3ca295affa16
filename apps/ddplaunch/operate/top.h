#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "launcher/lines/live_board.h"

namespace ddp {

/// The picture of `ddplaunch top` and the choices of its user (sans-IO). Its input is what `ddplaunch status
/// --json` prints.
class TopView {
 public:
  using Json = nlohmann::ordered_json;
  using Size = launcher::TerminalView::Size;

  enum class Key : std::uint8_t { kUp, kDown, kEnter, kEscape, kLetter };
  /// What the driver has to do after a key.
  enum class Wish : std::uint8_t {
    kNothing,
    kQuit,
    kOutput,  ///< show the output of rank()
    kStacks,  ///< show the stacks of rank()
    kStop,    ///< stop the job; the user has confirmed it
  };

  explicit TopView(bool colours) : colours_(colours) {}

  void set_status(Json status);
  /// A line about the picture itself, such as that the job does not answer; empty: none.
  void set_note(std::string note) { note_ = std::move(note); }
  /// `letter`: of kLetter.
  Wish on_key(Key key, char letter = 0);
  /// The chosen rank; the first one of the chosen node if no rank is chosen.
  std::uint32_t rank() const;

  /// Returns the rows of the screen, each with at most size.columns characters, from the top. `keys`: with
  /// the row that names the keys.
  std::vector<std::string> rows(Size size, bool keys) const;

 private:
  std::vector<const Json*> sorted_nodes() const;
  const Json* chosen_node() const;
  void move(int by);

  Json status_ = Json::object();
  std::string note_;
  bool colours_;
  std::size_t order_ = 0;        ///< index in the list of orders
  std::string chosen_;           ///< name of a node; empty: the first row
  bool shows_ranks_ = false;     ///< of the chosen node, instead of all nodes
  std::size_t chosen_rank_ = 0;  ///< index among those of the node
  bool asks_stop_ = false;
};

/// Returns what is wrong with a job in at most `most` rows of `width` characters: the verdict on its hang,
/// and of a failure what happened, the exception, the hint, and as many of the last lines of stderr as there
/// is room for. Empty: nothing.
std::vector<std::string> failure_rows(const TopView::Json& status, std::size_t width, std::size_t most,
                                      bool colours);

/// Splits the bytes of a terminal's keyboard. An escape sequence that is not known is skipped.
struct TopKey {
  TopView::Key key;
  char letter = 0;
};
std::vector<TopKey> read_keys(std::string_view bytes);

/// What `ddplaunch top` asks and does. Each call may block for a second; `stacks` for longer.
struct TopJob {
  std::function<bool()> runs;
  /// As `ddplaunch status --json` prints it; null: the job does not answer, and sets `error`.
  std::function<nlohmann::ordered_json(Error& error)> status;
  std::function<void(std::uint32_t rank, std::size_t lines)> print_output;  ///< the last lines, to stdout
  std::function<void(std::uint32_t rank)> print_stacks;
  std::function<Result<>()> stop;
};

/// Draws the job once a second on the terminal of stdout until it has ended or the user quits, and obeys keys
/// if stdin is a terminal, too. The terminal is as before when it returns, when a signal ends or stops the
/// process, and while it prints output or stacks. Returns whether the job has ended.
bool show_top(const TopJob& job);

}  // namespace ddp
