#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// Reads one terminal escape sequence at a time, wherever the chunks are cut (ECMA-48; xterm's ctlseqs). It
/// knows what bars use; everything else is recognised so that it can be left out whole. No allocation beyond
/// kMaxBytes; any bytes are valid input.
class EscapeReader {
 public:
  static constexpr std::size_t kMaxBytes = 128;  ///< of a control sequence; a longer one is left out
  static constexpr int kMaxCount = 9999;

  enum class Effect : std::uint8_t {
    kMore,       ///< the sequence goes on
    kBroken,     ///< the byte is no part of it and means what it means by itself
    kIgnored,    ///< done; nothing that a line could show
    kColour,     ///< SGR: bytes() is to be passed on
    kUp,         ///< the cursor count() rows up, same column
    kDown,       ///< the cursor count() rows down, same column
    kUpToStart,  ///< and to the first column
    kDownToStart,
    kStartOfRow,  ///< the cursor to the first column
    kEraseRow,    ///< the whole row
    kEraseToEnd,  ///< from the cursor to the row's end
    kEraseBelow,  ///< from the cursor to the screen's end
    kEraseScreen,
    kHideCursor,
    kShowCursor,
  };

  /// An ESC was read.
  void start();
  /// The next byte. After anything but kMore the reader is no longer inside a sequence.
  Effect feed(char c);
  bool inside() const { return state_ != State::kOutside; }
  /// What was open is forgotten.
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
    kStringEscape,  ///< an ESC inside one
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
