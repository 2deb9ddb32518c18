// SPDX-License-Identifier: Apache-2.0
// Exporting recordings as CSV traces.
#include <fmt/format.h>

#include <iterator>
#include <unordered_map>

#include "formats/csv_trace.hpp"
#include "formats/output.hpp"

namespace weir { inline namespace v0 { namespace formats {
namespace {

class csv_writer {
 public:
  explicit csv_writer(const recording& source) : source_{source} {}

  std::string write() && {
    out_ = "op,id,bytes,stream,t_us\n";
    for (const trace_event& each : source_.events) add(each);
    return std::move(out_);
  }

 private:
  void add(const trace_event& event) {
    switch (event.kind) {
      case trace_kind::allocate:
        if (source_.real_addresses) numbers_[event.address] = ++last_number_;
        return line('a', event, std::to_string(event.size));
      case trace_kind::deallocate:
        return line('r', event, {});
      case trace_kind::reusable:
        return line('f', event, {});
      case trace_kind::record_stream:
        return line('s', event, {});
      default:
        return;  // a CSV trace has no line for it
    }
  }

  void line(char operation, const trace_event& event, std::string_view size) {
    const std::uint64_t id = source_.real_addresses ? numbers_[event.address] : event.address;
    const std::uint64_t stream =
        event.stream < source_.streams.size() ? source_.streams[event.stream] : 0;
    fmt::format_to(std::back_inserter(out_), "{},{},{},{},{}", operation, id, size, stream,
                   event.time / 1000);
    if (event.time % 1000 != 0)
      fmt::format_to(std::back_inserter(out_), ".{:03}", event.time % 1000);
    out_ += '\n';
  }

  const recording& source_;
  std::unordered_map<std::uint64_t, std::uint64_t> numbers_;
  std::uint64_t last_number_ = 0;
  std::string out_;
};

}  // namespace

std::string csv_trace_of(const recording& recording) { return csv_writer{recording}.write(); }

result<void> write_csv_trace(const recording& recording, const std::string& path) {
  return write_file(path, csv_trace_of(recording));
}

}}}  // namespace weir::v0::formats
