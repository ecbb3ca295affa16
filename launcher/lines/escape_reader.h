#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// Reads one terminal escape sequence at a time, however the input is split (ECMA-48; xterm's ctlseqs). It
/// interprets the sequences that bars use. It recognizes all others, so that they can be removed whole. It
/// allocates at most kMaxBytes; any bytes are valid input.
class EscapeReader {
 public:
  static constexpr std::size_t kMaxBytes = 128;  ///< of a control sequence; a longer one is ignored
  static constexpr int kMaxCount = 9999;

  enum class Effect : std::uint8_t {
    kMore,       ///< the sequence continues
    kBroken,     ///< the byte does not belong to the sequence; treat it as text
    kIgnored,    ///< done; nothing to show in a line
    kColour,     ///< SGR: pass bytes() on
    kUp,         ///< cursor up count() rows, same column
    kDown,       ///< cursor down count() rows, same column
    kUpToStart,  ///< up, to the first column
    kDownToStart,
    kStartOfRow,  ///< cursor to the first column
    kEraseRow,    ///< the whole row
    kEraseToEnd,  ///< from the cursor to the row's end
    kEraseBelow,  ///< from the cursor to the screen's end
    kEraseScreen,
    kHideCursor,
    kShowCursor,
  };

  /// Starts a sequence after its ESC was read.
  void start();
  /// Takes the next byte. After any result but kMore the reader is outside a sequence.
  Effect feed(char c);
  bool inside() const { return state_ != State::kOutside; }
  /// Forgets an unfinished sequence.
  void reset() { state_ = State::kOutside; }

  int count() const { return count_; }               ///< 1..kMaxCount
  std::string_view bytes() const { return bytes_; }  ///< the whole sequence, from its ESC

 private:
  enum class State : std::uint8_t {
    kOutside,
    kEscape,        ///< after ESC
    kControl,       ///< after ESC [
    kCharset,       ///< after ESC and an intermediate byte such as ( or #
    kString,        ///< a title, a link: up to BEL or ESC backslash
    kStringEscape,  ///< an ESC inside a string
  };
  Effect after_escape(char c);
  Effect in_control(char c);
  Effect in_string(char c);
  Effect finish(Effect effect);
  Effect control_done(char final);
  void read_count();

  State state_ = State::kOutside;
  int count_ = 1;
  std::size_t string_bytes_ = 0;
  std::string bytes_;
};

}  // namespace ddp::launcher
