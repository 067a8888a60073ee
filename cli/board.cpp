// `hasten board DIR…`: writes or serves the page of tracking/board/board.h.
#include <csignal>
#include <fstream>
#include <iostream>

#include "commands.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/tracking/board/board.h"
#include "help.h"
#include "options.h"

namespace hasten::cli {
namespace {

const HelpText kBoardHelp = {
    "hasten board DIR… [OPTIONS]",
    "Makes one HTML page of the runs in folders and below: curves, speed and memory of each rank, images, settings, "
    "notes.",
    "Reads the journals that trackers write and TensorBoard's event files of any program. The page needs no network. "
    "--serve follows runs that go on."};

volatile std::sig_atomic_t board_ends = 0;

}  // namespace

int board(const std::vector<std::string>& words) {
  const auto line = read_options("board", board_options(), words, 1000);
  if (line.help) return std::cout << help_of(kBoardHelp, board_options(), colours_wanted()), 0;
  if (line.rest.empty())
    throw UsageError(Origin{"board"},
                     "no folder; expected at least one. Name folders of runs, as in 'hasten board runs'.");
  const std::vector<std::filesystem::path> folders(line.rest.begin(), line.rest.end());
  for (const auto& folder : folders) {
    if (!std::filesystem::is_directory(folder))
      throw UsageError(Origin{"board"}, "'", folder.string(), "' is no folder. Correct the path.");
  }
  refuse_options_of_others("board", line, line.has("serve") ? "--serve" : "a page in a file",
                           {{"bind", {"--serve"}}, {"port", {"--serve"}}, {"output", {"a page in a file"}}});
  if (line.has("serve")) {
    std::signal(SIGINT, [](int) { board_ends = 1; });
    std::signal(SIGTERM, [](int) { board_ends = 1; });
    tracking::serve_board(
        folders, line.has("bind") ? line.text("bind") : "127.0.0.1",
        line.has("port") ? core::whole_number<int>(line.text("port")).value() : 6007,
        [](const std::string& address) { std::cout << "board at " << address << " (Ctrl-C ends it)" << std::endl; },
        [] { return board_ends != 0; });
    return 0;
  }
  const auto runs = tracking::read_runs(folders);
  const std::filesystem::path output =
      line.has("output") ? std::filesystem::path(line.text("output")) : folders.front() / "board.html";
  std::ofstream file(output, std::ios::binary | std::ios::trunc);
  file << tracking::board_page(tracking::board_data(runs, 0, false));
  file.close();
  if (!file) throw DataError(Origin{"board"}, output, output, " cannot be written. Choose another --output.");
  std::cout << output.string() << ": " << runs.size() << (runs.size() == 1 ? " run" : " runs") << '\n';
  return 0;
}

}  // namespace hasten::cli
