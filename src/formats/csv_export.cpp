// Exporting recordings as CSV traces.
#include <fmt/format.h>

#include <iterator>
#include <unordered_map>

#include "formats/csv_trace.hpp"
#include "formats/final_state.hpp"
#include "formats/output.hpp"

namespace weir::inline v0::formats {
namespace {

class csv_writer {
 public:
  explicit csv_writer(const recording& from)
      : from_{from}, tells_reusable_{tells_of(from, trace_kind::reusable)} {}

  std::string write() && {
    out_ = "op,id,bytes,stream,t_us\n";
    for (const trace_event& each : from_.events) take(each);
    return std::move(out_);
  }

 private:
  void take(const trace_event& what) {
    switch (what.kind) {
      case trace_kind::allocate:
        if (from_.real_addresses) numbers_[what.address] = ++last_;
        return line('a', what, std::to_string(what.size));
      case trace_kind::deallocate:
        line('r', what, {});
        if (!tells_reusable_) line('f', what, {});
        return;
      case trace_kind::reusable:
        return line('f', what, {});
      default:
        return;  // a CSV trace has no line for it
    }
  }

  void line(char operation, const trace_event& what, std::string_view size) {
    const std::uint64_t id = from_.real_addresses ? numbers_[what.address] : what.address;
    const std::uint64_t stream =
        what.stream < from_.streams.size() ? from_.streams[what.stream] : 0;
    fmt::format_to(std::back_inserter(out_), "{},{},{},{},{}\n", operation, id, size, stream,
                   what.time / 1000);
  }

  const recording& from_;
  const bool tells_reusable_;
  std::unordered_map<std::uint64_t, std::uint64_t> numbers_;
  std::uint64_t last_ = 0;
  std::string out_;
};

}  // namespace

std::string csv_trace_of(const recording& what) { return csv_writer{what}.write(); }

result<void> write_csv_trace(const recording& what, const std::string& path) {
  return write_file(path, csv_trace_of(what));
}

}  // namespace weir::inline v0::formats
