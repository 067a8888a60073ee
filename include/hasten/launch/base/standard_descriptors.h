// Standard input, output and error exist, whatever a parent has closed.
#pragma once

namespace hasten::launcher {

/// Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed (`command <&- >&- 2>&-`, a daemon). Otherwise
/// the next socket or file would become this process's standard output. To be called before anything is opened.
void open_standard_descriptors() noexcept;

}  // namespace hasten::launcher
