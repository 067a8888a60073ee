// The command line of small programs: words by their places, and the usage where they do not fit.
#pragma once

#include <hasten/core/number.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace example {

class Arguments {
 public:
  /// The usage is the program's name and its words. Those that may be left out are in brackets: "rnn [STEPS]". Ends the
  /// program with the usage and exit code 2 if there are too few words or too many, with 0 for --help.
  Arguments(int argc, char** argv, const std::string& usage) : usage_(usage) {
    std::istringstream stream(usage);
    for (std::string name; stream >> name;) names_.push_back(name);
    for (int i = 0; i < argc; ++i) words_.emplace_back(argv[i]);
    if (std::count(words_.begin(), words_.end(), "--help") > 0) {
      std::cout << "usage: " << usage_ << std::endl;
      std::exit(0);
    }
    const auto is_needed = [](const std::string& name) { return name[0] != '['; };
    if (words_.size() < static_cast<size_t>(std::count_if(names_.begin(), names_.end(), is_needed))) {
      end("a word is missing");
    }
    if (words_.size() > names_.size()) end("there is no place for '" + words_[names_.size()] + "'");
  }

  /// Ends the program as above for an empty word.
  std::string text(size_t place) const {
    if (words_[place].empty()) end(names_[place] + " is empty");
    return words_[place];
  }

  /// Returns a whole number from `least` on, and `fallback` if the word is left out. Ends the program as above for
  /// another word.
  int64_t number(size_t place, int64_t fallback, int64_t least = 1) const {
    if (place >= words_.size()) return fallback;
    const std::optional<int64_t> number = hasten::core::whole_number<int64_t>(words_[place]);
    if (number && *number >= least && *number <= kMost) return *number;
    std::string name = names_[place];
    std::erase_if(name, [](char c) { return c == '[' || c == ']'; });
    end(name + " is '" + words_[place] + "'; expected a whole number from " + std::to_string(least) + " to " +
        std::to_string(kMost));
  }

  [[noreturn]] void end(const std::string& reason) const {
    std::cerr << names_[0] << ": " << reason << ".\nusage: " << usage_ << std::endl;
    std::exit(2);
  }

 private:
  static constexpr int64_t kMost = 1'000'000'000;

  std::string usage_;
  std::vector<std::string> names_, words_;
};

}  // namespace example
