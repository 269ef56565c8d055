// Lists that come in pages.

/** One page of a list. */
export interface Page<T> {
  readonly items: readonly T[];
  /** Where the next page starts; undefined: this was the last. */
  readonly nextCursor: string | undefined;
}

/** Which page, and how long. */
export interface PageOptions {
  /** The `nextCursor` of the page before; default: the first page. */
  readonly after?: string | undefined;
  /** How many items; default 50, above 1,000 cut to it. */
  readonly limit?: number;
}

/** A list: iterate over all items, or read page by page. */
export class List<T> implements AsyncIterable<T> {
  readonly #read: (pageToken: string, pageSize: number) => Promise<Page<T>>;

  /** @internal */
  constructor(read: (pageToken: string, pageSize: number) => Promise<Page<T>>) {
    this.#read = read;
  }

  /** Reads one page. */
  page(options: PageOptions = {}): Promise<Page<T>> {
    return this.#read(options.after ?? "", options.limit ?? 0);
  }

  /** Reads page after page, as the reader comes to them. */
  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for (let after: string | undefined = ""; after !== undefined;) {
      const page: Page<T> = await this.#read(after, 0);
      yield* page.items;
      after = page.nextCursor;
    }
  }

  /** Reads all of it. */
  async all(): Promise<T[]> {
    const found: T[] = [];
    for await (const item of this) {
      found.push(item);
    }
    return found;
  }
}
