// CRC-32C (Castagnoli), with which TFRecord files check lengths and data.
#pragma once

#include <cstdint>
#include <string_view>

namespace hasten::tracking {

/// Uses the processor's instruction where it has one.
uint32_t crc32c(std::string_view bytes) noexcept;

/// Returns the form in files: rotated and offset, so that a checksum of data that holds checksums is a good one.
uint32_t masked_crc32c(std::string_view bytes) noexcept;

namespace detail {
/// By a table; the same value (tests).
uint32_t crc32c_by_table(std::string_view bytes) noexcept;
}  // namespace detail

}  // namespace hasten::tracking
