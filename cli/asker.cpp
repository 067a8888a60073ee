// Menus and numbered questions; see asker.h.
#include "asker.h"

#include <termios.h>
#include <unistd.h>

#include <charconv>
#include <iostream>
#include <optional>

#include "hasten/core/env.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/strings.h"

namespace hasten::cli {
namespace {

[[noreturn]] void end_of_input() {
  throw UsageError({"config"}, "the answers ended before the questions did. Nothing was written.");
}

// The terminal without line editing and echo, as long as this exists.
class RawTerminal {
 public:
  RawTerminal() {
    tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
  }
  ~RawTerminal() { tcsetattr(STDIN_FILENO, TCSADRAIN, &before_); }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

 private:
  termios before_ = {};
};

enum class Key { kUp, kDown, kEnter, kDigit, kEnd, kOther };

struct Pressed {
  Key key;
  size_t digit = 0;
};

Pressed read_key() {
  const auto next = [] {
    char letter = 0;
    return read(STDIN_FILENO, &letter, 1) == 1 ? letter : char{4};
  };
  const char letter = next();
  if (letter == '\033') {
    if (next() != '[') return {Key::kOther};
    const char arrow = next();
    return {arrow == 'A' ? Key::kUp : arrow == 'B' ? Key::kDown : Key::kOther};
  }
  if (letter == 'k') return {Key::kUp};
  if (letter == 'j') return {Key::kDown};
  if (letter == '\n' || letter == '\r') return {Key::kEnter};
  if (letter >= '0' && letter <= '9') return {Key::kDigit, static_cast<size_t>(letter - '0')};
  return {letter == 4 ? Key::kEnd : Key::kOther};
}

void draw(const std::vector<std::string>& choices, size_t chosen) {
  for (size_t i = 0; i < choices.size(); ++i) {
    std::cout << "\033[2K" << (i == chosen ? "\033[32m> " : "  ") << choices[i] << (i == chosen ? "\033[0m" : "")
              << "\n";
  }
  std::cout << std::flush;
}

std::optional<int64_t> whole_number(const std::string& word) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

}  // namespace

Asker::Asker() : Asker(isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1) {}

size_t Asker::choose(const std::string& question, const std::vector<std::string>& choices, size_t fallback) {
  std::cout << question << "\n";
  if (interactive_) return choose_in_menu(choices, fallback);
  for (size_t i = 0; i < choices.size(); ++i) std::cout << "  " << i << ": " << choices[i] << "\n";
  while (true) {
    std::cout << "[" << fallback << "]: " << std::flush;
    const std::string line = read_line();
    if (line.empty()) return fallback;
    const auto number = whole_number(line);
    if (number && *number >= 0 && *number < static_cast<int64_t>(choices.size())) return static_cast<size_t>(*number);
    std::cout << "'" << line << "' is not a number between 0 and " << choices.size() - 1 << ".\n";
  }
}

size_t Asker::choose_in_menu(const std::vector<std::string>& choices, size_t chosen) {
  const RawTerminal raw;
  draw(choices, chosen);
  while (true) {
    const Pressed pressed = read_key();
    if (pressed.key == Key::kEnd) end_of_input();
    if (pressed.key == Key::kEnter) return chosen;
    if (pressed.key == Key::kUp) chosen = (chosen + choices.size() - 1) % choices.size();
    if (pressed.key == Key::kDown) chosen = (chosen + 1) % choices.size();
    if (pressed.key == Key::kDigit && pressed.digit < choices.size()) chosen = pressed.digit;
    std::cout << "\033[" << choices.size() << "A";
    draw(choices, chosen);
  }
}

std::string Asker::ask(const std::string& question, const std::string& fallback) {
  std::cout << question << (fallback.empty() ? ": " : text(" [", fallback, "]: ")) << std::flush;
  const std::string line = read_line();
  return line.empty() ? fallback : line;
}

int64_t Asker::number(const std::string& question, int64_t fallback, const Range& range) {
  while (true) {
    const std::string line = ask(question, text(fallback));
    const auto number = whole_number(line);
    if (number && *number >= range.least && *number <= range.most && *number % range.multiple_of == 0) return *number;
    std::cout << "'" << line << "' is not a whole number "
              << (range.most == INT64_MAX ? text("of at least ", range.least)
                                          : text("between ", range.least, " and ", range.most))
              << (range.multiple_of == 1 ? "" : text(" that ", range.multiple_of, " divides")) << ".\n";
  }
}

std::string Asker::need(const std::string& question) {
  while (true) {
    std::string line = ask(question);
    if (!line.empty()) return line;
    std::cout << "This has no default.\n";
  }
}

double Asker::real(const std::string& question, double fallback, double least) {
  while (true) {
    const std::string line = ask(question, text(fallback));
    const auto number = core::real_number(line);
    if (number && *number >= least) return *number;
    std::cout << "'" << line << "' is not a number of at least " << text(least) << ".\n";
  }
}

bool Asker::yes(const std::string& question, bool fallback) {
  while (true) {
    const std::string line = ask(question, fallback ? "YES/no" : "yes/NO");
    if (line == "YES/no" || line == "yes/NO") return fallback;
    if (const auto answer = core::parse_flag(line)) return *answer;
    std::cout << "Please answer yes or no.\n";
  }
}

std::string Asker::read_line() {
  std::string line;
  if (!std::getline(std::cin, line)) end_of_input();
  return std::string(core::trim(line));
}

}  // namespace hasten::cli
