// Asking and trying again, without asking from inside a question.
#include "weir/resource/retry_resource.hpp"

#include <atomic>

#include "resources/adaptor.hpp"

namespace weir::inline v0 {
namespace {

/// The questions that the thread is in the middle of, innermost_question first.
struct question {
  const void* of;
  question* around;
};
thread_local question* innermost_question = nullptr;

class question_scope {
 public:
  explicit question_scope(const void* of) noexcept : asked_{of, innermost_question} {
    innermost_question = &asked_;
  }
  ~question_scope() { innermost_question = asked_.around; }
  question_scope(const question_scope&) = delete;
  question_scope& operator=(const question_scope&) = delete;

 private:
  question asked_;
};

bool is_asking(const void* who) noexcept {
  for (const question* each = innermost_question; each != nullptr; each = each->around)
    if (each->of == who) return true;
  return false;
}

}  // namespace

struct retry_resource::state {
  const any_resource upstream;
  const shortage_callback callback;
  const unsigned most_retries;
  std::atomic<std::uint64_t> recoveries{0};
};

result<retry_resource> retry_resource::create(any_resource upstream, shortage_callback callback,
                                              unsigned most_retries) {
  WEIR_TRY(resources::check_upstream(upstream));
  if (!callback) return error{.code = errc::invalid_argument, .detail = "there is no callback"};
  return retry_resource{
      std::shared_ptr<state>{new state{std::move(upstream), std::move(callback), most_retries}}};
}

result<void*> retry_resource::try_allocate(bytes size, const stream_ref& stream, bytes alignment) {
  state& my = *inside_;
  auto made = my.upstream.try_allocate(size, stream, alignment);
  if (made || !resources::is_shortage(made.code()) || is_asking(&my)) return made;
  for (unsigned attempt = 1; attempt <= my.most_retries; ++attempt) {
    {
      const question_scope asking{&my};
      if (!my.callback(size, attempt)) break;
    }
    made = my.upstream.try_allocate(size, stream, alignment);
    if (made) {
      my.recoveries.fetch_add(1, std::memory_order_relaxed);
      break;
    }
    if (!resources::is_shortage(made.code())) break;
  }
  return made;
}

result<void> retry_resource::try_deallocate(void* pointer, bytes size, const stream_ref& stream) {
  return inside_->upstream.try_deallocate(pointer, size, stream);
}

std::uint64_t retry_resource::recoveries() const noexcept { return inside_->recoveries.load(); }
any_resource retry_resource::upstream() const { return inside_->upstream; }
weir::device retry_resource::device() const { return inside_->upstream.device(); }
memory_kind retry_resource::kind() const noexcept { return inside_->upstream.kind(); }

}  // namespace weir::inline v0
