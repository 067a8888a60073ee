// The progress bar: first the line as a pure function, then the time and place of drawing. See progress.h.
//
// A redraw is a carriage return and a line padded with blanks to the terminal's width, without escape sequences. So it
// works on every terminal. Only nested bars move the cursor up by one. The last column stays free, because some
// terminals wrap as soon as it is filled.
#include "hasten/tracking/run/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::tracking {
namespace {

constexpr int kLeastBar = 5;
constexpr int kUsualColumns = 80;

bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

int width(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return !continues_character(c); }));
}

std::string cut(std::string text, int columns) {
  int seen = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!continues_character(text[i]) && seen++ == columns) return text.substr(0, i);
  }
  return text;
}

std::string in_one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 127; }, ' ');
  return text;
}

std::string two_digits(int64_t number) {
  return text(number < 10 ? "0" : "", number);
}

// 75 -> "01:15", 3675 -> "1:01:15".
std::string duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  const std::string rest = text(two_digits(whole / 60 % 60), ':', two_digits(whole % 60));
  return whole < 3600 ? rest : text(whole / 3600, ':', rest);
}

// Three digits where it matters: 0.53, 42.1, 2613.
std::string number(double value) {
  return core::fixed_text(value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

// Steps a second, 0 if unknown.
double rate_of(const ProgressState& state) {
  if (state.rate) return *state.rate;
  const int64_t done = state.done - state.initial;
  return done <= 0 || state.elapsed_s <= 0 ? 0 : static_cast<double>(done) / state.elapsed_s;
}

std::string rate(const ProgressState& state) {
  const double per_second = rate_of(state);
  if (per_second <= 0) return "? " + state.unit + "/s";
  return per_second < 1 ? number(1 / per_second) + " s/" + state.unit : number(per_second) + " " + state.unit + "/s";
}

std::string remaining(const ProgressState& state) {
  const double per_second = rate_of(state);
  if (per_second <= 0) return state.done > state.initial ? duration(0) : "?";
  return duration(static_cast<double>(*state.total - state.done) / per_second);
}

std::string bar(double fraction, int columns) {
  const int filled = static_cast<int>(fraction * columns);
  std::string line(static_cast<size_t>(columns), ' ');
  std::fill_n(line.begin(), filled, '=');
  if (filled < columns) line[static_cast<size_t>(filled)] = '>';
  return line;
}

double steady_clock_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool is_terminal(std::FILE* output) {
  const int descriptor = fileno(output);
  return descriptor >= 0 && isatty(descriptor) == 1;
}

// Read at each redraw, because the window may change its size.
int terminal_columns(std::FILE* output) {
  winsize size{};
  return ioctl(fileno(output), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : kUsualColumns;
}

}  // namespace

std::string format_progress(const ProgressState& state, std::optional<int> columns) {
  const int64_t done = std::max<int64_t>(0, state.done);
  // A loop that runs longer than its total has an unknown end.
  const bool end_known = state.total && *state.total > 0 && done <= *state.total;
  const bool with_bar = columns && end_known;
  const std::string description = state.description.empty() ? "" : in_one_line(state.description) + ": ";
  const std::string counts = end_known ? text(done, '/', *state.total) : text(done);
  const std::string left = with_bar ? "<" + remaining(state) : "";
  const std::string postfix = state.postfix.empty() ? "" : ", " + in_one_line(state.postfix);
  const std::string facts = counts + " [" + duration(state.elapsed_s) + left + ", " + rate(state) + postfix + "]";
  if (!with_bar) return columns ? cut(description + facts, *columns) : description + facts;

  const double fraction = static_cast<double>(done) / static_cast<double>(*state.total);
  const std::string percent = text(static_cast<int>(fraction * 100), '%');
  const std::string head = description + std::string(4 - percent.size(), ' ') + percent;
  const int room = *columns - width(head) - width(facts) - static_cast<int>(std::string_view("|| ").size());
  if (room < kLeastBar) return cut(head + " " + facts, *columns);
  return head + "|" + bar(fraction, room) + "| " + facts;
}

Progress::Progress(std::optional<int64_t> total, ProgressOptions options) : options_(std::move(options)) {
  if (!options_.enabled) return;
  if (!options_.clock_s) options_.clock_s = steady_clock_s;
  terminal_ = is_terminal(options_.output);
  state_ = {.description = options_.description,
            .unit = options_.unit,
            .done = options_.initial,
            .total = total,
            .initial = options_.initial};
  if (options_.below != nullptr) depth_ = options_.below->depth_ + 1;
  start_s_ = measured_s_ = options_.clock_s();
  measured_done_ = options_.initial;
  if (terminal_) draw();
}

Progress::~Progress() {
  try {
    finish();
  } catch (...) {  // NOLINT(bugprone-empty-catch): a bar is not worth ending the program for
  }
}

void Progress::advance(int64_t n, std::string_view postfix) {
  if (!options_.enabled || finished_) return;
  state_.done += n;
  if (!postfix.empty()) state_.postfix = postfix;
  if (terminal_ && options_.clock_s() - drawn_s_ >= options_.redraw_interval_s) draw();
}

void Progress::finish() {
  if (!options_.enabled || finished_) return;
  finished_ = true;
  if (terminal_ && !options_.leave) {
    write_line("");
    std::fputs("\r", options_.output);
  } else if (options_.leave) {
    // A bar inside another leaves its line above that one.
    depth_ = 0;
    draw(/*last=*/true);
    std::fputc('\n', options_.output);
    if (options_.below != nullptr && terminal_) options_.below->draw();
  }
  std::fflush(options_.output);
}

void Progress::measure_rate() {
  const double time_s = drawn_s_ - measured_s_;
  const int64_t done = state_.done - measured_done_;
  if (options_.smoothing <= 0 || done <= 0 || time_s <= 0) return;
  const double weight = options_.smoothing;
  mean_done_ = weight * static_cast<double>(done) + (1 - weight) * mean_done_;
  mean_s_ = weight * time_s + (1 - weight) * mean_s_;
  state_.rate = mean_done_ / mean_s_;
  measured_s_ = drawn_s_;
  measured_done_ = state_.done;
}

void Progress::draw(bool last) {
  drawn_s_ = options_.clock_s();
  state_.elapsed_s = drawn_s_ - start_s_;
  measure_rate();
  if (last) state_.rate.reset();  // over the whole loop
  if (!terminal_) {
    std::fputs(format_progress(state_).c_str(), options_.output);
    return;
  }
  write_line(format_progress(state_, terminal_columns(options_.output) - 1));
}

// Writes the line, padded to the terminal's width, `depth_` lines below the cursor, which stays where it was.
void Progress::write_line(const std::string& line) {
  const int columns = terminal_columns(options_.output) - 1;
  std::string padded = line;
  padded.append(static_cast<size_t>(std::max(0, columns - width(line))), ' ');
  std::string bytes(static_cast<size_t>(depth_), '\n');
  bytes += "\r" + padded;
  if (depth_ > 0) bytes += text("\x1b[", depth_, 'A');
  std::fputs(bytes.c_str(), options_.output);
  std::fflush(options_.output);
}

}  // namespace hasten::tracking
