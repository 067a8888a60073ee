// The commands of `hasten`: one function and one source file each; main.cpp holds the table.
#pragma once

#include <string>
#include <vector>

namespace hasten::cli {

/// `hasten launch`, given what stands after that word; returns the exit code.
/// Throws: UsageError for what the user must mend.
int launch(const std::vector<std::string>& words);

}  // namespace hasten::cli
