//! A disk that grows under its store: from the size found to the size offered; or becomes shorter.

/// How far the growth of a disk has come, and whether it was cut.
#[derive(Debug)]
pub(super) struct Growth {
    /// The largest size that a sync was to make durable. One that failed is not tried again: the store
    /// stays as large as it is until the disk grows once more.
    asked: u64,
    /// That sync is with the disk.
    pub is_under_way: bool,
    /// Sizes offered since the store was opened, and the cut.
    pub count: u64,
    told: u64,
    /// What lies beneath has become shorter; whether that was told.
    cut: Option<bool>,
}

impl Growth {
    /// Of a store that was opened with so many bytes.
    pub fn new(bytes: u64) -> Self {
        Growth { asked: bytes, is_under_way: false, count: 0, told: 0, cut: None }
    }

    /// The disk has this size. True if that is to be made durable now.
    pub fn begin(&mut self, bytes: u64) -> bool {
        let begins = bytes > self.asked && !self.is_under_way;
        if begins {
            (self.asked, self.is_under_way) = (bytes, true);
        }
        begins
    }

    /// It is durable, and offered from now on, or it could not be made so.
    pub fn end(&mut self, is_durable: bool) {
        self.is_under_way = false;
        self.count += u64::from(is_durable);
    }

    /// It has become shorter, for good.
    pub fn cut(&mut self) {
        if self.cut.is_none() {
            self.cut = Some(false);
            self.count += 1;
            // That is no size.
            self.told += 1;
        }
    }

    /// Whether it has become shorter, and that has not been told; from now on it has.
    pub fn is_cut_news(&mut self) -> bool {
        self.cut.as_mut().is_some_and(|told| !std::mem::replace(told, true))
    }

    /// Whether there is a size that has not been told of; from now on it has.
    pub fn is_news(&mut self) -> bool {
        std::mem::replace(&mut self.told, self.count) != self.count
    }
}
